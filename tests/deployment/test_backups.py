"""A copy that is made while rounds go on: it says what was promised, and nothing goes on from it that was private."""

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
import sqlite3
from unittest.mock import Mock

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core import atomic_files
from fedlm.fl_core.deployment import backups
from fedlm.fl_core.deployment.backups import back_up
from fedlm.fl_core.deployment.roles import serve
from fedlm.fl_core.deployment.runs.run_queue import STOPPED
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, sqlite_url
from fedlm.fl_core.errors import CheckpointError, DiskError
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.runs.capabilities.budget_records import BudgetError
from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from tests.deployment import kills
from tests.deployment import small_deployment as small
from tests.deployment.test_population import PROMISED, opened, settings_of


async def test_the_budget_of_a_copied_server_is_spent_since_nobody_knows_what_it_reserved_since(tmp_path):
    here, copy = tmp_path / "server", tmp_path / "copy"
    here.mkdir()
    with opened(here, dataclasses.replace(PROMISED, population=("default", "more"))) as server:
        for name in ("default", "more"):
            server.submit(f"of_{name}", settings_of(population=name))
        back_up(here, copy)
        server.submit("two", settings_of())
    with opened(copy) as restored:
        for told in restored.populations.read(restored.queue.all()):
            assert told["epsilon_reserved"] == told["epsilon_budget"] == 12.0
            with pytest.raises(BudgetError, match="nothing more is reserved"):
                restored.submit("two", settings_of(population=told["name"]))
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


def begun(folder):
    """A run without privacy that has a checkpoint, and a database."""
    (folder / "checkpoints/1").mkdir(parents=True)
    (folder / "checkpoints/1/model").write_text("parameters")
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as database:
        database.execute("create table rounds (number)")
    return folder


def test_a_run_that_may_yet_become_private_is_not_copied(tmp_path):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="could not tell whether it is private"):
        back_up(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_is_its_owners_alone_and_lacks_what_only_a_process_uses(tmp_path, monkeypatch):
    run, copy, modes = begun(tmp_path / "run"), tmp_path / "copy", []
    for name in ("noise-secret-0", "state.db-wal", "state.db-shm", ".lock", "a.partial"):
        (run / name).write_text("")
    (run / ".backup-killed/checkpoints").mkdir(parents=True)
    os.utime(run / ".backup-killed", (0, 0))
    moved = atomic_files.sync_to_disk
    monkeypatch.setattr(
        atomic_files, "sync_to_disk", lambda path: (modes.append(copy.exists() and copy.stat().st_mode), moved(path))
    )
    back_up(run, copy)
    assert {path.name for path in copy.iterdir()} == {"checkpoints", "state.db"}
    assert [mode & 0o777 for mode in modes if mode] == [0o700]
    assert (copy / "state.db").stat().st_mode & 0o777 == 0o600
    assert not (run / ".backup-killed").exists()


def test_what_the_disk_or_a_damaged_file_refuses_is_told(tmp_path, monkeypatch):
    run = begun(tmp_path / "run")
    (run / BUDGET_FILE).write_text("{}\n")
    with pytest.raises(BudgetError, match="put the file of the privacy budget back"):
        back_up(run, tmp_path / "copy")
    (run / BUDGET_FILE).unlink()
    (run / "state.db").write_text("no database, but longer than the head of one" * 99)
    with pytest.raises(DiskError, match=r"state.db: cannot be copied"):
        back_up(run, tmp_path / "copy")
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
    with pytest.raises(DiskError, match="makes no hard link"):
        back_up(run, tmp_path / "copy")


def test_the_queue_is_copied_after_the_budget_and_before_the_names_of_processes(tmp_path, monkeypatch):
    here, copied, real = tmp_path / "server", [], backups._copy_database
    DataBudget.set(begun(here), 1.0, 1e-5)

    def copy_database(path, made):
        copied.extend(sorted(one.name for one in made.parent.iterdir()))
        (here / "lineage.json").write_text("later")
        real(path, made)

    monkeypatch.setattr(backups, "_copy_database", copy_database)
    back_up(here, tmp_path / "copy")
    assert copied == ["checkpoints", BUDGET_FILE]
    assert (tmp_path / "copy/lineage.json").read_text() == "later"
