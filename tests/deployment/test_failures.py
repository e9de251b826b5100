"""What happens around a server: a database that is locked, a clock that steps backwards."""

import asyncio
import time
from types import SimpleNamespace

import pytest
import sqlalchemy as sql

from fedlm.fl_core.deployment.server import client_registry, local_rounds, training
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, sqlite_url
from tests.deployment import small_deployment as small

PRIVACY = small.PRIVACY | {"noise_seed": "entropy", "min_separation": 3, "max_participations": 4}


def settings(**changes):
    return small.deployment(
        **PRIVACY | {"rounds": 4, "cohort_size": 2, "minimum_reports": 2, "over_selection": 1.5, **changes}
    )


async def run_to_the_end(server, tmp_path, meanwhile=None):
    """Returns the rows of a run, after something else has happened beside it."""
    async with asyncio.timeout(small.PATIENCE), server:
        clients = [small.make_client(server.port, tmp_path, one) for one in range(10)]
        async with small.running(clients):
            happening = asyncio.create_task(asyncio.to_thread(meanwhile, server)) if meanwhile else None
            assert await server.over
            if happening:
                await happening
    return server.rows


def wait_for_rounds(server, count):
    while len(server.rows) < count and not server.over.done():
        time.sleep(0.01)


@pytest.mark.long
def test_a_database_that_is_locked_is_waited_for(tmp_path):
    server = small.Server(small.task(settings()), tmp_path / "run")

    def lock(server):
        wait_for_rounds(server, 1)
        with sql.create_engine(sqlite_url(server.out / DATABASE_FILE)).connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            time.sleep(1.0)
            held.append(len(server.rows))

    held = []
    rows = asyncio.run(run_to_the_end(server, tmp_path, lock))
    assert held[0] <= 2, "a round was released while who took part could not be written"
    assert [row["round"] for row in rows] == [0, 1, 2, 3]


@pytest.mark.long
def test_a_clock_that_steps_backwards_stops_nothing(tmp_path, monkeypatch):
    server = small.Server(small.task(settings()), tmp_path / "run")
    shift = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + shift[0], monotonic=time.monotonic, sleep=time.sleep)
    # The server's own clock alone.
    for module in (client_registry, local_rounds, training):
        monkeypatch.setattr(module, "time", clock)

    def step(server):
        for count, seconds in ((1, -3600.0), (2, 3600.0)):
            wait_for_rounds(server, count)
            shift[0] = seconds

    rows = asyncio.run(run_to_the_end(server, tmp_path, step))
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert all(0 <= row["seconds"] < 60 for row in rows)
