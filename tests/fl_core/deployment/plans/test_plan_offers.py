"""A server offers compiled modules beside a plan to clients that name a target, and to no others."""

import asyncio
import hashlib
import json

import pytest

from fedlm.fl_core.deployment.plans import plan_offers
from fedlm.fl_core.deployment.plans.plan_modules import ModuleFolder, module_name
from fedlm.fl_core.deployment.plans.plan_offers import PlanOffers
from fedlm.fl_core.deployment.plans.programs import versions
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm.fl_core.errors import ConfigurationError, DiskError
from tests.support import plans

PLAIN = messages.Runtime(name="iree", version="3.13.0")
ASKING = messages.Runtime(name="iree", version="3.13.0", target="x86_64-linux")


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    monkeypatch.setattr(plan_offers, "_SETTLED_SECONDS", 0)
    monkeypatch.setattr(plan_offers, "_AGAIN_SECONDS", 0)


async def offer(offers, runtime):
    async with asyncio.timeout(30):
        while (found := offers.offer([runtime])) is None:
            await asyncio.sleep(0.01)
        return found


def fill(folder, plan, content=b"module of "):
    for program in (plan.step, plan.finish):
        digest = hashlib.sha256(program).hexdigest()
        path = folder / ASKING.target / module_name(digest, ASKING.version)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content + digest.encode())


def test_modules_are_offered_as_soon_as_they_are_there(tmp_path):
    plan, _ = plans.plan_of()
    create_plan_key(tmp_path / "keys")
    signer = PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE)
    (tmp_path / "modules").mkdir()

    async def run():
        made = []
        offers = PlanOffers(
            lambda version: made.append(version) or plan,
            signer,
            1 << 16,
            tmp_path,
            ModuleFolder(tmp_path / "modules"),
        )
        before = await offer(offers, ASKING)
        fill(tmp_path / "modules", plan)
        after = await offer(offers, ASKING)
        plain, again = await offer(offers, PLAIN), await offer(offers, ASKING)
        other = await offer(offers, messages.Runtime(name="iree", version="3.13.0", target="aarch64-linux"))
        newer = await offer(offers, messages.Runtime(name="iree", version="3.14.0", target=ASKING.target))
        # Clients choose target and version, and none that there are no files of is kept.
        assert len(offers._made) == 2
        assert made == [versions()[-1]]
        assert after is again
        for one in (before, plain, other, newer):
            assert not one.message.HasField("modules")
            assert one.message.manifest == after.message.manifest
        modules = after.message.modules
        statement = json.loads(modules.statement)
        for name, program in (("step", plan.step), ("finish", plan.finish)):
            content = b"module of " + hashlib.sha256(program).hexdigest().encode()
            assert statement["modules"][name] == {
                "sha256": hashlib.sha256(content).hexdigest(),
                "bytes": len(content),
            }
            assert offers.find(getattr(modules, name).digest).chunk(0).content() == content
            assert offers.find(getattr(after.message, name).digest).chunk(0).content() == program

    asyncio.run(run())


def test_modules_that_were_written_again_are_offered_in_place_of_those_before(tmp_path, monkeypatch):
    plan, _ = plans.plan_of()
    create_plan_key(tmp_path / "keys")
    (tmp_path / "modules").mkdir()
    fill(tmp_path / "modules", plan, b"half of ")

    async def run():
        folder = ModuleFolder(tmp_path / "modules")
        offers = PlanOffers(
            lambda version: plan, PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE), 1 << 16, tmp_path, folder
        )
        for content in (b"half of ", b"module of "):
            fill(tmp_path / "modules", plan, content)
            modules = (await offer(offers, ASKING)).message.modules
            assert offers.find(modules.step.digest).chunk(0).content().startswith(content)
            assert len(offers._made) == 2
        # What is read while it changes is not signed.
        found = folder.find(plan, ASKING.name, ASKING.target, ASKING.version)
        fill(tmp_path / "modules", plan, b"again module of ")
        with pytest.raises(OSError, match="were changed"):
            found.read(plan, ASKING.name, None)
        # Nor is what may be half written, for which a client waits.
        monkeypatch.setattr(plan_offers, "_SETTLED_SECONDS", 60)
        for _ in range(10):
            assert offers.offer([ASKING]) is None
            await asyncio.sleep(0.05)
        assert offers.offer([PLAIN]) is not None

    asyncio.run(run())


@pytest.mark.parametrize(
    ("failures", "events"),
    [
        (
            [MemoryError("no memory"), ZeroDivisionError("a defect")],
            [("plan_not_made", "ZeroDivisionError: a defect"), ("plan_not_made", "MemoryError: no memory")],
        ),
        ([DiskError("no space"), DiskError("no space")], [("plan_not_written", "no space")] * 2),
    ],
    ids=["unforeseen", "full disk"],
)
def test_a_failure_that_may_be_over_turns_no_client_away(tmp_path, monkeypatch, failures, events):
    plan, _ = plans.plan_of()
    create_plan_key(tmp_path / "keys")
    failures, said = list(failures), []
    monkeypatch.setattr(plan_offers, "warn", lambda event, why: said.append((event, why)))

    def make(version):
        if failures:
            raise failures.pop()
        return plan

    async def run():
        offers = PlanOffers(make, PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE), 1 << 16, tmp_path)
        assert (await offer(offers, PLAIN)).plan is plan
        assert len(offers._made) == 1

    asyncio.run(run())
    assert said == events


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), DiskError("no space")])
def test_a_client_that_asks_without_pause_has_a_failing_plan_made_no_more_often(tmp_path, monkeypatch, error):
    monkeypatch.setattr(plan_offers, "_AGAIN_SECONDS", 60)
    create_plan_key(tmp_path / "keys")
    asked = []

    def make(version):
        asked.append(version)
        raise error

    async def run():
        offers = PlanOffers(make, PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE), 1 << 16, tmp_path)
        for _ in range(100):
            assert offers.offer([PLAIN]) is None
            await asyncio.sleep(0.001)

    asyncio.run(run())
    assert len(asked) == 1


def test_what_a_run_cannot_have_a_plan_of_is_said_to_each_client(tmp_path):
    create_plan_key(tmp_path / "keys")
    asked = []

    def make(version):
        asked.append(version)
        raise ConfigurationError("no plan of this")

    async def run():
        offers = PlanOffers(make, PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE), 1 << 16, tmp_path)
        for _ in range(2):
            assert "no plan of this" in await offer(offers, PLAIN)
        assert len(asked) == 1

    asyncio.run(run())


def test_modules_that_cannot_be_read_are_none(tmp_path, monkeypatch):
    plan, _ = plans.plan_of()
    create_plan_key(tmp_path / "keys")
    (tmp_path / "modules").mkdir()
    fill(tmp_path / "modules", plan)

    async def run():
        folder = ModuleFolder(tmp_path / "modules")
        found = folder.find(plan, ASKING.name, ASKING.target, ASKING.version)
        monkeypatch.setattr(folder, "find", lambda *asked: found)
        found.paths[1].unlink()
        offers = PlanOffers(
            lambda version: plan, PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE), 1 << 16, tmp_path, folder
        )
        assert not (await offer(offers, ASKING)).message.HasField("modules")

    asyncio.run(run())
    fill(tmp_path / "modules", plan)
    next((tmp_path / "modules" / ASKING.target).iterdir()).write_bytes(b"")
    assert ModuleFolder(tmp_path / "modules").find(plan, ASKING.name, ASKING.target, ASKING.version) is None


def test_a_folder_of_modules_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nothing: is no folder of compiled modules"):
        ModuleFolder(tmp_path / "nothing")
