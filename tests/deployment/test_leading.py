"""One process leads, others stand by: who was taken over from writes nothing more, into the database or the folder.

`FEDLM_TAKEOVERS` sets how many leaders are killed, and `FEDLM_FREEZES` how many are frozen; the defaults keep the suite
quick.
"""

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.deployment import leading as leading_module
from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.leading import LEASE_SECONDS, Lead, leading
from fedlm.fl_core.deployment.roles import coordinate, serve, serve_runs
from fedlm.fl_core.deployment.runs.population_settings import PopulationSettings
from fedlm.fl_core.deployment.runs.run_queue import FINISHED
from fedlm.fl_core.deployment.state import retrying
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import NotLeadingError, StateError
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.joint_statement import state_together
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.record.record_chain import RecordChain
from fedlm.fl_core.runs.files.run_lock import FolderLock
from tests.deployment import kills
from tests.deployment import small_deployment as small
from tests.deployment.test_population import maker, opened

TAKEOVERS = int(os.environ.get("FEDLM_TAKEOVERS", "3"))
FREEZES = int(os.environ.get("FEDLM_FREEZES", "1"))
LIMIT = pytest.mark.timeout(600 + 60 * max(TAKEOVERS, FREEZES))


@pytest.fixture
def another(tmp_path, database_url):
    """Makes processes that would lead, each with a database and a lock."""
    with contextlib.ExitStack() as opened:

        def make(folder=tmp_path):
            database = opened.enter_context(contextlib.closing(Database(database_url)))
            return Lead(database, opened.enter_context(contextlib.closing(FolderLock(folder)))), database

        yield make


def test_who_is_silent_by_the_others_clock_is_taken_over_from_and_writes_nothing_more(another, tmp_path):
    (one, database), (other, _) = another(), another()
    chain = RecordChain(tmp_path / "chain", lambda before, record: None, ValueError)
    chain.fence = database.fenced
    assert one.look(0.0)
    for second in range(100):
        one.beat()
        assert not other.look(float(second)), "one that beats leads on"
    # A clock of its own, which went on while nobody looked: the leader may have been heard in between.
    assert not other.look(1000.0)
    assert not other.look(1000.0 + LEASE_SECONDS / 2)
    assert not other.look(1000.0 + LEASE_SECONDS)
    chain.append({"written": True})
    assert other.look(1000.0 + LEASE_SECONDS + 0.1)
    for write in (one.beat, lambda: SqlState(database).claim("run"), lambda: chain.append({})):
        with pytest.raises(NotLeadingError):
            write()
    with pytest.raises(NotLeadingError):
        database.look()
    one.end()
    other.beat()
    assert len(RecordChain(tmp_path / "chain", lambda before, record: None, ValueError).records) == 1


def test_of_two_that_saw_a_silent_leader_one_takes_the_lead_and_who_had_to_wait_does_not(another, monkeypatch):
    (one, _), (other, database), (third, _) = another(), another(), another()
    assert one.look(0.0)
    for waiting in (other, third):
        for second in (0.0, 2.0, 4.0):
            assert not waiting.look(second)
    writing = database.writing

    @contextlib.contextmanager
    def after_a_long_write():
        with writing() as connection:
            time.sleep(0.3)
            yield connection

    monkeypatch.setattr(database, "writing", after_a_long_write)
    assert not other.look(6.0)
    monkeypatch.undo()
    assert not other.look(8.0), "the leader, whose beats waited too, has another lease"
    found = third._seen
    assert third.look(6.0)
    assert not other._take(found, 1.0)
    third.beat()


def test_a_slow_database_does_not_keep_everybody_from_the_lead(another, monkeypatch):
    (one, _), (other, database) = another(), another()
    assert one.look(0.0)
    reading, clock, looks = database.reading, Clock(), []

    @contextlib.contextmanager
    def slow():
        clock.now += LEASE_SECONDS
        with reading() as connection:
            yield connection

    monkeypatch.setattr(database, "reading", slow)
    monkeypatch.setattr(leading_module, "time", clock)
    while not other.look(clock.now):
        looks.append(clock.now)
        assert len(looks) < 5


class Clock:
    """A clock that goes as it is told."""

    now = 0.0

    def monotonic(self):
        """Tell the time."""
        return self.now


def test_whose_lock_is_free_is_gone_but_not_who_has_it_on_a_copy_of_the_folder(another, tmp_path):
    (tmp_path / "copy").mkdir()
    (one, _), (copied, _) = another(), another(tmp_path / "copy")
    assert one.look(0.0)
    assert not copied.look(0.0)
    # As the kernel does for a process that is killed.
    one._lock.close()
    assert not copied.look(0.1)
    assert another()[0].look(0.0)


async def test_who_stands_by_waits_for_a_busy_database_without_end(another, monkeypatch):
    monkeypatch.setattr(retrying, "RETRY_SECONDS", -1.0)
    monkeypatch.setattr(retrying, "SECONDS_BETWEEN_TRIES", 0.0)
    (lead, database), tries, look = another(), [], Lead.look

    def busy(self, now):
        tries.append(now)
        if len(tries) % 3:
            raise StateError("busy")
        return look(self, now)

    monkeypatch.setattr(Lead, "look", busy)
    with pytest.raises(StateError):
        await leading(lead._lock, database).__aenter__()
    async with leading(lead._lock, database, stands_by=True):
        assert len(tries) == 3


def test_tables_change_when_a_newer_process_leads_and_not_while_it_stands_by(another, monkeypatch):
    upgraded = []
    (one, _), (newer, database) = another(), another()
    assert one.look(0.0)
    monkeypatch.setattr(Database, "_is_current", lambda self, connection: self is not database)
    monkeypatch.setattr(Database, "_upgrade", lambda self, connection: upgraded.append(self))
    database.open()
    assert upgraded == []
    one._lock.close()
    assert newer.look(0.0)
    assert upgraded == [database]


async def test_while_something_is_written_elsewhere_nobody_takes_the_lead(another):
    (one, database), (other, _) = another(), another()
    assert one.look(0.0)
    one._lock.close()
    with database.fenced():
        taking = asyncio.create_task(asyncio.to_thread(other.look, 0.0))
        await asyncio.sleep(0.3)
        assert not taking.done()
        with database.fenced():
            pass
    assert await taking


def serve_or_stand_by(settings, out, port, log):
    """Run a server until its end, in a process of its own."""
    small.log_to(log)
    endpoints = dataclasses.replace(small.endpoints(settings, port), stands_by=True)
    asyncio.run(serve(small.task(settings), out, endpoints, small.log_release))


def coordinate_or_stand_by(settings, out, database, log):
    """Run a coordinator until its end, in a process of its own."""
    small.log_to(log)
    endpoints = Endpoints(stands_by=True)
    asyncio.run(coordinate(small.task(settings), out, endpoints, small.log_release, database=database))


@pytest.mark.long
@LIMIT
async def test_the_other_goes_on_where_a_leader_is_killed_and_keeps_its_promises(tmp_path, free_port):
    settings = small.deployment(**kills.SETTINGS)

    async def run_once(folder, rng, most):
        seen, out = kills.Seen(), folder / "run"
        async with small.running(seen.clients(free_port, folder)):
            words = settings, out, free_port
            taken = await kills.run_and_take_over(serve_or_stand_by, words, out, seen, rng, most)
        kills.check(out, sqlite_url(out / DATABASE_FILE), settings, seen.models)
        return taken

    await kills.run_until_killed(tmp_path, TAKEOVERS, run_once)


async def test_who_would_stand_by_with_another_folder_is_refused_at_once(tmp_path):
    url, task = sqlite_url(tmp_path / "state.db"), small.task(small.deployment())
    with contextlib.closing(SqlState(url)) as state:
        state.claim("another")
    with pytest.raises(ConfigurationError, match="is not the folder of the run"):
        await coordinate(task, tmp_path / "run", Endpoints(stands_by=True), print, database=url)


PEOPLE = {"one": "default", "two": "default", "other": "more"}
RUNS = PopulationSettings(
    epsilon=1000.0, delta=1e-3, rounds=50, max_participations=4, min_separation=3, population=("default", "more")
)


def serve_runs_or_stand_by(settings, over, port, log):
    """Train three runs, two at a time, in a process of its own, until all are over, and tell so in a folder."""
    small.log_to(log)
    directory = over.parent

    async def all_of_them():
        endpoints = dataclasses.replace(small.endpoints(settings, port), stands_by=True)
        serving = serve_runs(maker(), directory, endpoints, small.log_release, promised=RUNS)
        serving = asyncio.create_task(serving)
        summaries = [directory / "runs" / name / "summary.json" for name in PEOPLE]
        while not all(map(Path.exists, summaries)) and not serving.done():
            await asyncio.sleep(0.1)
        if not serving.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await serving
        over.mkdir(exist_ok=True)
        (over / "summary.json").touch()

    asyncio.run(all_of_them())


@pytest.mark.long
@LIMIT
async def test_the_other_goes_on_with_all_runs_of_a_server_and_none_spends_more_than_it_reserved(tmp_path, free_port):
    settings = small.deployment(**kills.SETTINGS | {"rounds": 5, "max_participations": 2})

    async def run_once(folder, rng, most):
        directory, seen = folder / "server", kills.Seen()
        (directory / "runs").mkdir(parents=True)
        with opened(directory, RUNS) as server:
            for name, people in PEOPLE.items():
                server.submit(name, settings_as_json(settings) | {"population": people})
            promised = {one["name"]: one["epsilon_reserved"] for one in server.populations.read(server.queue.all())}
        clients, over = seen.clients(free_port, folder), directory / "over"
        for client in clients:
            client._participation = OwnParticipation(populations=RUNS.population)
        async with small.running(clients):
            words = settings, over, free_port
            taken = await kills.run_and_take_over(serve_runs_or_stand_by, words, over, seen, rng, most)
        for people, reserved in promised.items():
            outs = [directory / "runs" / name for name, of in PEOPLE.items() if of == people]
            assert (
                state_together({out.name: PrivacyLedger(out / "privacy/ledger.jsonl") for out in outs}).epsilon
                <= reserved
            )
        with opened(directory, RUNS) as server:
            assert [run.state for run in server.queue.all()] == [FINISHED] * 3
            told = {one["name"]: one["epsilon_reserved"] for one in server.populations.read(server.queue.all())}
        assert told == promised
        return taken

    await kills.run_until_killed(tmp_path, TAKEOVERS, run_once)


@pytest.mark.long
@LIMIT
async def test_a_coordinator_that_was_frozen_is_taken_over_from_and_writes_nothing_more(tmp_path, free_port):
    settings = small.deployment(**kills.SETTINGS)

    async def run_once(folder, rng, most):
        url, seen, out = sqlite_url(folder / "state.db"), kills.Seen(), folder / "run"
        with small.aggregator_processes(2, settings, folder, url, free_port):
            async with small.running(seen.clients(free_port, folder)):
                words = settings, out, url
                taken = await kills.run_and_take_over(coordinate_or_stand_by, words, out, seen, rng, most, freeze=True)
        kills.check(out, url, settings, seen.models)
        return taken

    await kills.run_until_killed(tmp_path, FREEZES, run_once)
