"""`fedlm plan`: what is written, and what is refused in one line."""

import importlib.util
import json
import sys

import pytest

from fedlm.fedlm_client.plans.manifest import read_manifest
from fedlm.fedlm_client.plans.signature import check_signature, read_public_keys
from fedlm.fl_core.deployment.plans.plan_folder import write_plan
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm.models.special_tokens import GEMMA
from tests.support import plans
from tests.support.untrained import untrained_run

needs_litert = pytest.mark.skipif(
    importlib.util.find_spec("ai_edge_litert") is None, reason="ai-edge-litert is not installed; `make` installs it"
)


@pytest.fixture(scope="module")
def run(small_store, tmp_path_factory, fedlm_here):
    folder = tmp_path_factory.mktemp("plan_commands")
    settings = {"model": "cifg_tiny", "length": 8, "cohort_size": 2, "client_max_batches": 1}
    untrained_run(folder / "run", data=small_store, **settings)
    assert fedlm_here("keys", "plan", "--keys", folder / "keys").returncode == 0
    return folder


@pytest.mark.long
@needs_litert
def test_a_plan_is_exported_signed_and_looked_into(run, small_store, tmp_path, fedlm_here):
    key = run / "keys/plan.pub"
    exported = fedlm_here("plan", "export", run / "run", "--keys", run / "keys", "--out", tmp_path / "plan")
    assert exported.returncode == 0, exported.stderr
    content = (tmp_path / "plan/manifest.json").read_bytes()
    manifest = read_manifest(content)
    check_signature(content, (tmp_path / "plan/manifest.sig").read_bytes(), read_public_keys(key))
    assert manifest.digest in exported.stdout
    shown = fedlm_here("plan", "inspect", tmp_path / "plan", "--plan-key", key)
    assert shown.returncode == 0, shown.stderr
    assert "sgd on cifg_tiny, float32" in shown.stdout
    assert f"signed with {key}" in shown.stdout
    found = json.loads(fedlm_here("plan", "inspect", tmp_path / "plan", "--json").stdout)
    assert found["manifest"]["signatures"]["train"]["operations"]["BATCH_MATMUL"] > 0
    assert found["manifest"]["batches"]["length"] == 8
    # Nothing of where it was made is in it, so that it is the same wherever that is.
    again = fedlm_here("plan", "export", run / "run", "--keys", run / "keys", "--out", tmp_path / "again")
    assert again.returncode == 0
    for name in ("manifest.json", "manifest.sig", "model.tflite", "tokenizer.json"):
        assert (tmp_path / "plan" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()

    # The settings of a deployment say as much, before its server has ever run.
    settings = 'model = "cifg_tiny"\nlength = 8\nclient_max_batches = 1\ncohort_size = 2\n'
    (tmp_path / "serve.toml").write_text(settings)
    words = ["--keys", run / "keys", "--vocabulary", small_store, "--out", tmp_path / "planned"]
    planned = fedlm_here("plan", "export", tmp_path / "serve.toml", *words)
    assert planned.returncode == 0, planned.stderr
    assert (tmp_path / "planned/manifest.json").read_bytes() == content

    (tmp_path / "plan/model.tflite").write_bytes(b"x")
    changed = fedlm_here("plan", "inspect", tmp_path / "plan")
    assert (changed.returncode, "does not match the manifest" in changed.stderr) == (2, True)


@needs_litert
def test_no_plan_is_exported_that_a_server_would_refuse(small_store, tmp_path, fedlm_here):
    found = json.loads((small_store / "tokenizer.json").read_bytes())
    pieces = {piece: id_ for piece, id_ in found["model"]["vocab"].items() if id_ >= len(GEMMA.names)}
    found["model"]["vocab"] = {piece: id_ for id_, piece in enumerate(GEMMA.names)} | pieces
    found["model"]["unk_token"] = GEMMA.names[-1]
    (tmp_path / "theirs.json").write_text(json.dumps(found))
    (tmp_path / "serve.toml").write_text('model = "cifg_tiny"\nlength = 8\n')
    words = ["--unsigned", "--vocabulary", tmp_path / "theirs.json", "--out", tmp_path / "plan"]
    done = fedlm_here("plan", "export", tmp_path / "serve.toml", *words)
    assert (done.returncode, "but devices know only" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "plan").exists()


def test_a_folder_that_was_changed_by_hand_is_noticed(tmp_path, fedlm_here):
    tokenizer = b"{}"
    plan, _ = plans.plan_of()
    create_plan_key(tmp_path / "keys")
    create_plan_key(tmp_path / "others")
    signature = PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE).sign(plan.manifest)
    write_plan(tmp_path / "plan", plan, signature, tokenizer)
    own, other = ((tmp_path / name / "plan.pub").read_bytes() for name in ("keys", "others"))
    (tmp_path / "both.pub").write_bytes(other + own)
    (tmp_path / "other.pub").write_bytes(other)
    folder, manifest = tmp_path / "plan", tmp_path / "plan/manifest.json"

    def inspected(*words):
        done = fedlm_here("plan", "inspect", folder, *words)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    # While one key follows another, a file has both.
    assert inspected("--plan-key", tmp_path / "both.pub")[0] == 0
    assert "is not signed with" in inspected("--plan-key", tmp_path / "other.pub")[1]
    (folder / "tokenizer.json").write_bytes(b"{ }")
    assert "tokenizer.json: does not match the manifest" in inspected()[1]
    (folder / "tokenizer.json").write_bytes(tokenizer)
    found = json.loads(manifest.read_bytes())
    found["state"][0], found["upload"] = found["upload"], found["state"][0]
    manifest.write_text(json.dumps(found))
    assert "is not signed with" in inspected("--plan-key", tmp_path / "both.pub")[1]
    for content in (json.dumps(found), "[" * 100_000, '{"format": "fedlm-plan", "version": 1}', "[]"):
        manifest.write_text(content)
        status, said = inspected()
        assert (status, "no plan can be read" in said) == (2, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["export", "RUN", "--out", "OUT"], "signed with --keys"),
        (["export", "RUN", "--out", "OUT", "--keys", "OUT"], "no private key can be read"),
        (["export", "OUT", "--out", "OUT", "--unsigned"], "holds no checkpoints"),
        (["export", "RUN", "--out", "RUN", "--unsigned"], "is there already"),
        (["export", "RUN", "--out", "NEW", "--unsigned"], "pip install 'fedlm[litert]'"),
        (["export", "FILE", "--out", "OUT", "--unsigned"], "sets rounds_, which is no option"),
        (["inspect", "OUT"], "no plan can be read"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run, tmp_path, fedlm_here, monkeypatch, words, why):
    if "NEW" in words:
        monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    (tmp_path / "serve.toml").write_text("rounds_ = 1\n")
    places = {"RUN": run / "run", "OUT": tmp_path / "out", "NEW": tmp_path / "out", "FILE": tmp_path / "serve.toml"}
    result = fedlm_here("plan", *(places.get(word, word) for word in words))
    said = [line for line in result.stderr.splitlines() if line.startswith("fedlm ")]
    assert (result.returncode, len(said)) == (2, 1)
    assert why in said[0]
    assert not (tmp_path / "out").exists()
