"""A server makes the plan when the first client asks, and offers it to all."""

import asyncio

import pytest

from fedlm.fl_core.deployment.plans import plan_offers
from fedlm.fl_core.deployment.plans.plan import Plan
from fedlm.fl_core.deployment.plans.plan_offers import PlanOffer
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm.fl_core.errors import ConfigurationError, DiskError

PLAN = Plan(b"{}", b"a model of LiteRT")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(plan_offers, "_AGAIN_SECONDS", 0)


@pytest.fixture
def signer(tmp_path):
    create_plan_key(tmp_path / "keys")
    return PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE)


async def made(offer):
    async with asyncio.timeout(30):
        while (found := offer.offer()) is None:
            await asyncio.sleep(0.01)
        return found


async def test_a_plan_is_made_once_and_its_parts_are_found(tmp_path, signer):
    asked = []

    def make():
        asked.append(None)
        return PLAN

    offer = PlanOffer(make, signer, 1 << 16, tmp_path)
    found = [await made(offer) for _ in range(2)]
    parts = [offer.find(one.digest) for one in (found[0].message.manifest, found[0].message.model)]
    (first, second), parts, other = found, parts, offer.find(b"another")
    assert (first is second, len(asked), other) == (True, 1, None)
    assert [one.chunk(0).content() for one in parts] == [PLAN.manifest, PLAN.model]
    assert [one.description.encoding for one in parts] == ["plan", "litert"]
    assert first.message.signature == signer.sign(PLAN.manifest)


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
async def test_a_failure_that_may_be_over_turns_no_client_away(tmp_path, signer, monkeypatch, failures, events):
    failures, said = list(failures), []
    monkeypatch.setattr(plan_offers, "warn", lambda event, why: said.append((event, why)))

    def make():
        if failures:
            raise failures.pop()
        return PLAN

    offer = PlanOffer(make, signer, 1 << 16, tmp_path)
    assert (await made(offer)).plan is PLAN
    assert said == events


def test_a_client_that_asks_without_pause_has_a_failing_plan_made_no_more_often(tmp_path, signer, monkeypatch):
    monkeypatch.setattr(plan_offers, "_AGAIN_SECONDS", 60)
    failures = [DiskError("no space"), ZeroDivisionError("a defect")]

    def make():
        raise failures.pop()

    async def run():
        offer = PlanOffer(make, signer, 1 << 16, tmp_path)
        for _ in range(100):
            assert offer.offer() is None
            await asyncio.sleep(0.001)

    for left in (1, 0):
        asyncio.run(run())
        assert len(failures) == left


async def test_what_a_run_cannot_have_a_plan_of_is_said_to_each_client(tmp_path, signer):
    reasons = [ConfigurationError("no plan of this")]

    def make():
        raise reasons.pop()

    offer = PlanOffer(make, signer, 1 << 16, tmp_path)
    for _ in range(2):
        assert "no plan of this" in await made(offer)
