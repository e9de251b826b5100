"""A server offers compiled modules beside a plan to clients that name a target, and to no others."""

import asyncio

import pytest

from fedlm.fl_core.deployment.plans import plan_offers
from fedlm.fl_core.deployment.plans.plan_modules import ModuleFolder
from fedlm.fl_core.deployment.plans.plan_offers import PlanOffers
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm.fl_core.errors import ConfigurationError, DiskError
from tests.support import plans

PLAIN = messages.Runtime(name="iree", version="3.13.0")


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    monkeypatch.setattr(plan_offers, "_SETTLED_SECONDS", 0)
    monkeypatch.setattr(plan_offers, "_AGAIN_SECONDS", 0)


@pytest.fixture
def signer(tmp_path):
    create_plan_key(tmp_path / "keys")
    return PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE)


async def offer(offers, runtime):
    async with asyncio.timeout(30):
        while (found := offers.offer([runtime])) is None:
            await asyncio.sleep(0.01)
        return found


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
def test_a_failure_that_may_be_over_turns_no_client_away(tmp_path, signer, monkeypatch, failures, events):
    plan, _ = plans.plan_of()
    failures, said = list(failures), []
    monkeypatch.setattr(plan_offers, "warn", lambda event, why: said.append((event, why)))

    def make(version):
        if failures:
            raise failures.pop()
        return plan

    async def run():
        offers = PlanOffers(make, signer, 1 << 16, tmp_path)
        assert (await offer(offers, PLAIN)).plan is plan
        assert len(offers._made) == 1

    asyncio.run(run())
    assert said == events


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), DiskError("no space")])
def test_a_client_that_asks_without_pause_has_a_failing_plan_made_no_more_often(tmp_path, signer, monkeypatch, error):
    monkeypatch.setattr(plan_offers, "_AGAIN_SECONDS", 60)
    asked = []

    def make(version):
        asked.append(version)
        raise error

    async def run():
        offers = PlanOffers(make, signer, 1 << 16, tmp_path)
        for _ in range(100):
            assert offers.offer([PLAIN]) is None
            await asyncio.sleep(0.001)

    asyncio.run(run())
    assert len(asked) == 1


def test_what_a_run_cannot_have_a_plan_of_is_said_to_each_client(tmp_path, signer):
    asked = []

    def make(version):
        asked.append(version)
        raise ConfigurationError("no plan of this")

    async def run():
        offers = PlanOffers(make, signer, 1 << 16, tmp_path)
        for _ in range(2):
            assert "no plan of this" in await offer(offers, PLAIN)
        assert len(asked) == 1

    asyncio.run(run())


def test_a_folder_of_modules_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nothing: is no folder of compiled modules"):
        ModuleFolder(tmp_path / "nothing")
