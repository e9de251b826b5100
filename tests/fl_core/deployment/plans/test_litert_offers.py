"""A server offers a model of LiteRT to clients that name it, where it is signed and of the very plan."""

import asyncio
import errno
import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from fedlm.fl_core.deployment.plans import plan_offers
from fedlm.fl_core.deployment.plans.litert.folder import write_litert_plan
from fedlm.fl_core.deployment.plans.litert.model import FORMAT, VERSION, LitertPlan
from fedlm.fl_core.deployment.plans.plan_modules import PURPOSE, ModuleFolder
from fedlm.fl_core.deployment.plans.plan_offers import PlanOffers
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from tests.fl_core.deployment.plans.test_plan_offers import offer, settled, signer
from tests.support import plans

ASKING = messages.Runtime(name="litert", version=str(VERSION), target="litert")
MODEL = b"a model of LiteRT"
settled, signer = settled, signer


def exported(folder, signer, digest, **changes):
    """A folder as `fedlm plan export --format litert` makes it of a plan."""
    described = {"sha256": hashlib.sha256(MODEL).hexdigest(), "bytes": len(MODEL)}
    manifest = {"format": FORMAT, "version": VERSION, "plans": ["0" * 64, digest], "model": described}
    manifest |= {"tokenizer": {"sha256": hashlib.sha256(b"{}").hexdigest()}} | changes
    content = json.dumps(manifest).encode()
    signature = None if signer is None else signer.sign(content)
    write_litert_plan(folder / ASKING.target, LitertPlan(content, MODEL), signature, b"{}")


def offered(folder, plan, signer, *asked):
    """What a server with a folder of modules offers to each of some runtimes, and what it warns of."""

    async def run():
        offers = PlanOffers(lambda version: plan, signer, 1 << 16, folder, ModuleFolder(folder / "modules"))
        found = [(await offer(offers, one)).message for one in asked]
        return found, [offers.find(one.modules.step.digest) for one in found if one.HasField("modules")]

    return asyncio.run(run())


def test_a_tokenizer_that_comes_later_is_found(tmp_path, signer, monkeypatch):
    plan, _ = plans.plan_of()
    exported(tmp_path / "modules", signer, plan.digest)
    late, said = tmp_path / "modules/litert/tokenizer.json", []
    late.rename(tmp_path / "late")
    monkeypatch.setattr(plan_offers, "warn", lambda event, target, why: said.append(why))

    async def run():
        modules = ModuleFolder(tmp_path / "modules")
        offers = PlanOffers(lambda version: plan, signer, 1 << 16, tmp_path, modules)
        before = (await offer(offers, ASKING)).message.HasField("modules")
        (tmp_path / "late").rename(late)
        return before, (await offer(offers, ASKING)).message.HasField("modules")

    assert asyncio.run(run()) == (False, True)
    assert len(said) == 1


def test_a_model_that_is_longer_than_its_manifest_says_is_not_read(tmp_path, signer, monkeypatch):
    plan, _ = plans.plan_of()
    exported(tmp_path / "modules", signer, plan.digest)
    model = tmp_path / "modules/litert/model.tflite"
    os.truncate(model, 1 << 40)
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) if path != model else pytest.fail("it was read"))
    found, _ = offered(tmp_path, plan, signer, ASKING)
    assert not found[0].HasField("modules")


def test_one_model_is_both_modules_of_its_plan(tmp_path, signer):
    plan, _ = plans.plan_of()
    exported(tmp_path / "modules", signer, plan.digest)
    others = [{"version": "2"}, {"target": "x86-64"}, {"target": ""}, {"name": "iree"}, {"name": "fedlm-js"}]
    asked = [messages.Runtime(**{"name": "litert", "version": "1", "target": "litert"} | one) for one in others]
    (found, *rest), (model,) = offered(tmp_path, plan, signer, ASKING, *asked)
    assert not any(one.HasField("modules") for one in rest)
    assert found.modules.step == found.modules.finish
    assert (model.description.encoding, model.chunk(0).content()) == ("litert", MODEL)
    statement = json.loads(found.modules.statement)
    described = {"sha256": hashlib.sha256(MODEL).hexdigest(), "bytes": len(MODEL)}
    assert statement.pop("modules") == {"step": described, "finish": described}
    about = {"plan": plan.digest, "runtime": "litert", "runtime_version": "1", "target": "litert"}
    assert statement == about | {"format": "fedlm-modules", "version": 1}
    assert found.modules.signature == signer.sign(found.modules.statement, PURPOSE)


def without_right_to_enter(folder, monkeypatch):
    """Have what is in a folder refused, also where the tests' user may enter all of them."""
    stat = Path.stat

    def refused(path, **given):
        if path.parent == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **given)

    monkeypatch.setattr(Path, "stat", refused)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("another plan", r"is of other plans than \w{12}, .* export it again"),
        ("no plans", "is of other plans"),
        ("plans that are none", "is of other plans"),
        (
            "unsigned",
            r"manifest\.sig: cannot be read \(No such file or directory\); export the model again, with keys",
        ),
        ("an empty signature", r"manifest\.sig: is no file, or is empty"),
        ("no model", r"model\.tflite: cannot be read \(No such file or directory\)"),
        ("a tokenizer that is a pipe", r"tokenizer\.json: is no file, or is empty"),
        ("not ours to enter", r"manifest\.json: cannot be read \(Permission denied\)"),
        ("another key", "is not signed with this server's key"),
        ("an altered manifest", "is not signed with this server's key"),
        ("truncated", r"model\.tflite: is not what the manifest names"),
        ("longer", r"model\.tflite: is not what the manifest names"),
        ("another format", "is no fedlm-litert of version 1"),
        ("no manifest", "no plan can be read"),
    ],
)
def test_what_is_no_model_of_the_plan_is_not_offered(tmp_path, signer, monkeypatch, change, why):
    plan, _ = plans.plan_of()
    create_plan_key(tmp_path / "others")
    signers = {"unsigned": None, "another key": PlanSigner(tmp_path / "others" / PLAN_KEY_FILE)}
    digest = "f" * 64 if change == "another plan" else plan.digest
    changes = {
        "no plans": {"plans": []},
        "plans that are none": {"plans": 5},
        "another format": {"format": "fedlm-plan"},
    }.get(change, {})
    exported(tmp_path / "modules", signers.get(change, signer), digest, **changes)
    folder, said = tmp_path / "modules/litert", []
    if change in ("truncated", "longer"):
        (folder / "model.tflite").write_bytes(MODEL[:-1] if change == "truncated" else MODEL + b"\0")
    if change == "an altered manifest":
        (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes() + b" ")
    if change == "an empty signature":
        (folder / "manifest.sig").write_bytes(b"")
    if change == "no model":
        (folder / "model.tflite").unlink()
    if change == "a tokenizer that is a pipe":
        (folder / "tokenizer.json").unlink()
        os.mkfifo(folder / "tokenizer.json")
    if change == "not ours to enter":
        without_right_to_enter(folder, monkeypatch)
    if change == "no manifest":
        (folder / "manifest.json").write_bytes(b"[")
    monkeypatch.setattr(plan_offers, "warn", lambda event, target, why: said.append((event, target, why)))
    found, _ = offered(tmp_path, plan, signer, *[ASKING] * 3)
    assert not any(one.HasField("modules") for one in found)
    # The plan itself is, and it is said once why nothing more is.
    assert all(one.manifest.size == len(plan.manifest) for one in found)
    ((event, target, words),) = said
    assert (event, target) == ("modules_unreadable", "litert")
    assert re.search(why, words)
