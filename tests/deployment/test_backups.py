"""A copy that is made while rounds go on: it says what was promised, and nothing goes on from it that was private."""

import asyncio
import json

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.deployment.backups import back_up
from fedlm.fl_core.deployment.roles import serve
from fedlm.fl_core.deployment.runs.run_queue import STOPPED
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, sqlite_url
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.runs.capabilities.budget_records import BudgetError
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from tests.deployment import kills
from tests.deployment import small_deployment as small
from tests.deployment.test_population import opened, settings_of


async def test_the_budget_of_a_copied_server_is_spent_since_nobody_knows_what_it_reserved_since(tmp_path):
    here, copy = tmp_path / "server", tmp_path / "copy"
    here.mkdir()
    with opened(here) as server:
        server.submit("one", settings_of())
        back_up(here, copy)
        server.submit("two", settings_of())
    with opened(copy) as restored:
        told = restored.population.read(restored.queue.all())
        assert told["epsilon_reserved"] == told["epsilon_budget"] == 12.0
        with pytest.raises(BudgetError, match="nothing more is reserved"):
            restored.submit("two", settings_of())
    assert back_up(copy, tmp_path / "again") == back_up(copy, tmp_path / "once more")


async def test_a_copied_server_fails_the_run_that_waited_and_goes_on(tmp_path):
    here, copy = tmp_path / "server", tmp_path / "copy"
    here.mkdir()
    with opened(here) as server:
        server.submit("one", settings_of())
        server.submit("two", settings_of())
        back_up(here, copy)
    with opened(copy) as restored:
        restored.become("two", STOPPED)
        await restored._train(restored.queue.find("one"))
    with opened(copy) as restored:
        assert "nothing more is reserved" in restored.queue.find("one").reason


@pytest.mark.long
async def test_a_run_that_is_copied_while_it_goes_on_has_spent_its_plan_in_the_copy_and_ends_there(tmp_path):
    settings = small.deployment(**kills.SETTINGS | {"rounds": 6})
    out, seen, copies = tmp_path / "run", kills.Seen(), []
    server = small.Server(small.task(settings), out)
    async with asyncio.timeout(small.PATIENCE), server, small.running(seen.clients(server.port, tmp_path)):
        while not server.over.done():
            if len(server.rows) > len(copies):
                copies.append(tmp_path / f"copy{len(copies)}")
                assert await asyncio.to_thread(back_up, out, copies[-1])
            await asyncio.sleep(0.01)
    kills.check(out, sqlite_url(out / DATABASE_FILE), settings, seen.models)
    assert len(copies) >= 4
    for copy in copies:
        ledger = PrivacyLedger(copy / "privacy/ledger.jsonl")
        assert state(ledger).own.epsilon == account(ledger.plan, settings.privacy.delta).epsilon
        with Checkpoints(copy / "checkpoints") as checkpoints:
            assert ledger.last_release.rounds in checkpoints.all_rounds()
            checkpoints.restore_arrays(ledger.last_release.rounds)
        assert not list(copy.rglob("noise-secret-*"))
    (out / "lineage.json").unlink()
    with pytest.raises(LedgerError, match="all 6 planned rounds count as released"):
        await serve(small.task(settings), copies[2], small.endpoints(settings, 0), print)


@pytest.mark.long
async def test_a_run_without_privacy_goes_on_from_its_copy(tmp_path):
    settings = small.deployment(rounds=4)
    out, copy = tmp_path / "run", tmp_path / "copy"
    server = small.Server(small.task(settings), out)

    def clients(port):
        return small.running([small.make_client(port, tmp_path, one) for one in range(8)])

    async with asyncio.timeout(small.PATIENCE), server, clients(server.port):
        while len(server.rows) < 2:
            await asyncio.sleep(0.005)
        assert await asyncio.to_thread(main, ["runs", "backup", str(out), str(copy)]) == 0
    out.rename(tmp_path / "lost")
    again = small.Server(small.task(settings), copy)
    async with asyncio.timeout(small.PATIENCE), again, clients(again.port):
        assert await again.over
    assert [json.loads(line)["round"] for line in (copy / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2, 3]


def test_what_is_no_run_is_not_copied(tmp_path):
    with pytest.raises(CheckpointError, match="there is no run"):
        back_up(tmp_path, tmp_path / "copy")
