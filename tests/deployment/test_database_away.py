"""A database that cannot be reached is waited for, however long: probes say so, and the log does once a minute."""

import asyncio
import contextlib
import logging
import urllib.error
import urllib.request

import pytest

from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.operations.listener import OperatorApplication, OperatorListener
from fedlm.fl_core.deployment.roles import coordinate
from fedlm.fl_core.deployment.state import database, retrying
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import StateError, UnreachableError
from tests.deployment import small_deployment as small
from tests.deployment.test_aggregators import aggregators_here

NOBODY_THERE = "postgresql://u:secret@127.0.0.1:1/x"


def state_lines(caplog):
    return [record for record in caplog.records if record.message in ("state_not_reached", "state_reached")]


def test_there_is_a_line_a_minute_and_one_when_it_is_back(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "fedlm")
    now = [0.0]
    monkeypatch.setattr(database, "_now", lambda: now[0])
    away = Database(NOBODY_THERE, open_now=False)
    assert away.reachable
    for second in range(0, 301, 5):
        now[0] = float(second)
        with pytest.raises(UnreachableError, match="cannot be reached"):
            away.look()
        assert not away.reachable
    lines = state_lines(caplog)
    assert [line.fields["seconds"] for line in lines] == [0, 60, 120, 180, 240, 300]
    assert "secret" not in str([line.fields for line in lines])


def test_what_needs_it_is_tried_until_it_is_back_but_not_what_waiting_does_not_mend(monkeypatch):
    monkeypatch.setattr(retrying, "RETRY_SECONDS", -1.0)
    monkeypatch.setattr(retrying, "SECONDS_BETWEEN_TRIES", 0.0)
    tries = []

    def work():
        tries.append(1)
        if len(tries) <= 70:
            raise UnreachableError("away")
        return "done"

    async def work_async():
        return work()

    assert retrying.with_retries(work) == "done"
    tries.clear()
    assert asyncio.run(retrying.with_retries_async(work_async)) == "done"

    def fail():
        raise StateError("the disk is full")

    with pytest.raises(StateError, match="the disk is full"):
        retrying.with_retries(fail)


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["no database", "no user"])
def test_a_database_that_refuses_is_a_mistake_that_is_said_at_once(postgresql, wrong):
    url = postgresql.url()
    url = url.replace("/test", "/nothing") if wrong == "no database" else url.replace("fedlm@", "nobody_else@")
    with pytest.raises(StateError, match=r"cannot be opened.*does not exist") as caught:
        Database(url)
    assert not isinstance(caught.value, UnreachableError)


class Operators:
    """The operators' listeners of some processes, and what their probes say."""

    def __init__(self):
        self.listeners = []

    def show(self, overview, metrics):
        self.listeners.append(OperatorListener(OperatorApplication(overview, metrics), "127.0.0.1:0"))
        return self.listeners[-1]

    def ask(self, path):
        """The status of the answer of the listener that was opened last; None where none listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.listeners[-1].port}{path}", timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except (OSError, IndexError):
            return None

    async def until(self, path, status):
        async with asyncio.timeout(small.PATIENCE):
            while await asyncio.to_thread(self.ask, path) != status:
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def stopped(postgresql):
    await asyncio.to_thread(postgresql.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(postgresql.start)


@pytest.mark.long
async def test_a_server_waits_for_its_database_before_and_between_rounds(tmp_path, postgresql, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "fedlm")
    monkeypatch.setattr(retrying, "RETRY_SECONDS", 0.1)
    url, operators = postgresql.url(), Operators()
    server = small.Server(small.task(small.deployment(rounds=2)), tmp_path / "run", database=url)
    server.operators = operators.show
    async with asyncio.timeout(small.PATIENCE):
        async with stopped(postgresql):
            starting = asyncio.create_task(server.__aenter__())
            await operators.until("/readyz", 503)
            assert await asyncio.to_thread(operators.ask, "/healthz") == 200
            assert await asyncio.to_thread(operators.ask, "/status.json") == 503
            assert await asyncio.to_thread(operators.ask, "/metrics") == 200
        await starting
        await operators.until("/readyz", 200)
        clients = [small.make_client(server.port, tmp_path, one) for one in range(8)]
        async with stopped(postgresql), small.running(clients):
            await operators.until("/readyz", 503)
            assert await asyncio.to_thread(operators.ask, "/status.json") == 503
            await asyncio.sleep(1.0)
            assert not server.over.done()
        await operators.until("/readyz", 200)
        async with small.running([small.make_client(server.port, tmp_path, one) for one in range(8)]):
            assert await server.over
        await server.__aexit__(None, None, None)
    assert [row["round"] for row in server.rows] == [0, 1]
    names = [line.message for line in state_lines(caplog)]
    assert names.count("state_reached") >= 2
    assert len(names) <= 8
    refusals = [record.message for record in caplog.records if record.message.endswith(("_failed", "_not_saved"))]
    assert not refusals, "no line for each client or try"


@pytest.mark.long
async def test_coordinator_and_aggregators_wait_too(tmp_path, postgresql, monkeypatch, free_port):
    monkeypatch.setattr(retrying, "RETRY_SECONDS", 0.1)
    url, coordinators, others = postgresql.url(), Operators(), Operators()
    settings, rows = small.deployment(rounds=2), []
    async with asyncio.timeout(small.PATIENCE):
        async with stopped(postgresql):
            what = small.task(settings)
            endpoints = Endpoints(operators=coordinators.show)
            coordinating = asyncio.create_task(coordinate(what, tmp_path / "run", endpoints, rows.append, database=url))
            await coordinators.until("/readyz", 503)
        await coordinators.until("/readyz", 200)
        async with aggregators_here(1, settings, tmp_path, url, free_port, others.show):
            await others.until("/readyz", 200)
            async with stopped(postgresql):
                await coordinators.until("/readyz", 503)
                await others.until("/readyz", 503)
                assert await asyncio.to_thread(others.ask, "/metrics") == 200
                assert await asyncio.to_thread(others.ask, "/status.json") == 404
                await asyncio.sleep(1.0)
            async with small.running([small.make_client(free_port, tmp_path, one) for one in range(8)]):
                assert await coordinating
    assert [row["round"] for row in rows] == [0, 1]
