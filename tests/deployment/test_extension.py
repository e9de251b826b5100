"""A private plan is given no more rounds; a run that goes on from it has a plan of its own, composed with the first."""

import asyncio

import pytest

from fedlm.fl_core.privacy.ledger import LedgerError, PrivacyLedger
from fedlm.fl_core.privacy.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.privacy.statement import state
from tests.deployment import small_deployment as small

PRIVATE = small.PRIVACY | {"noise_seed": "entropy", "noise_multiplier": 4.0, "cohort_size": 4, "minimum_reports": 4}


async def run(out, folder, **changes):
    server = small.Server(small.task(small.deployment(**PRIVATE | changes)), out)
    async with asyncio.timeout(120), server:
        clients = [small.make_client(server.port, folder, one) for one in range(14)]
        async with small.running(clients):
            assert await server.over


def statement(out):
    return state(PrivacyLedger(out / PRIVACY_FOLDER / LEDGER_FILE))


@pytest.mark.long
def test_a_finished_plan_gets_no_more_rounds_and_an_extension_is_composed_with_it(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    bounded = {"max_participations": 2}
    asyncio.run(run(first, tmp_path, rounds=2, **bounded))
    ledger = (first / PRIVACY_FOLDER / LEDGER_FILE).read_bytes()
    with pytest.raises(LedgerError, match=r"rounds was 2 and is now 4.*init_from .*first and another out"):
        asyncio.run(run(first, tmp_path, rounds=4, **bounded))
    assert (first / PRIVACY_FOLDER / LEDGER_FILE).read_bytes() == ledger
    asyncio.run(run(second, tmp_path, rounds=2, init_from=first, **bounded))
    alone, both = statement(first).total, statement(second).total
    assert alone is not None
    assert both.epsilon > 1.2 * alone.epsilon
