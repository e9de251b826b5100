"""What happens around a server: a full disk, a database that is locked or gone, a clock that steps backwards."""

import asyncio
import multiprocessing
import os
import subprocess
import threading
import time

import pytest
import small_deployment as small
import sqlalchemy as sql
from test_server_kills import check

from fl_core.serving.state_sql import DATABASE_FILE, sqlite_url

PRIVACY = small.PRIVACY | {"noise_seed": "entropy", "min_separation": 3, "max_participations": 4}


def settings(**changes):
    return small.deployment(
        **PRIVACY | {"rounds": 4, "cohort_size": 2, "minimum_reports": 2, "over_selection": 1.5, **changes}
    )


async def run_to_the_end(server, tmp_path, meanwhile=None):
    """Returns the rows of a run, after something else has happened beside it."""
    async with asyncio.timeout(120), server:
        clients = [small.make_client(server.port, tmp_path, one) for one in range(10)]
        async with small.running(clients):
            happening = asyncio.create_task(asyncio.to_thread(meanwhile, server)) if meanwhile else None
            assert await server.over
            if happening:
                await happening
    return server.rows


def wait_for_rounds(server, count):
    while len(server.rows) < count:
        time.sleep(0.01)


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


def test_a_database_that_goes_away_is_waited_for(tmp_path, postgresql):
    url = postgresql.url()
    server = small.Server(small.task(settings()), tmp_path / "run", database=url)

    def restart(server):
        wait_for_rounds(server, 1)
        postgresql.stop()
        time.sleep(1.0)
        away.append(len(server.rows))
        postgresql.start()

    away = []
    rows = asyncio.run(run_to_the_end(server, tmp_path, restart))
    assert away[0] <= 2
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    with sql.create_engine(url.replace("postgresql:", "postgresql+psycopg:")).connect() as connection:
        finished = sql.text("select round_number from attempts where outcome = 'finished' order by 1")
        assert connection.scalars(finished).all() == [0, 1, 2, 3]


def test_a_clock_that_steps_backwards_moves_no_deadline(tmp_path, monkeypatch):
    clock = time.time
    server = small.Server(small.task(settings()), tmp_path / "run")

    def step(server):
        wait_for_rounds(server, 1)
        monkeypatch.setattr(time, "time", lambda: clock() - 3600.0)
        wait_for_rounds(server, 2)
        monkeypatch.setattr(time, "time", lambda: clock() + 3600.0)

    rows = asyncio.run(run_to_the_end(server, tmp_path, step))
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert all(0 <= row["seconds"] < 60 for row in rows)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_server_and_loses_nothing(tmp_path, tiny_disk, free_port):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["small_deployment"])
    out, ballast, seen, ends = tiny_disk / "run", tiny_disk / "ballast", {}, []

    def fill():
        # Once the run has begun, there is room for less and less.
        while not (out / "metrics.jsonl").exists():
            time.sleep(0.01)
        with ballast.open("wb") as file:
            while True:
                try:
                    file.write(bytes(4096))
                    file.flush()
                except OSError:
                    return

    async def serve_until_it_ends():
        process = context.Process(target=small.serve_in_process, args=(settings(), out, free_port))
        process.start()
        while process.is_alive():
            await asyncio.sleep(0.05)
        ends.append(process.exitcode)

    async def run():
        clients = [small.make_client(free_port, tmp_path, one) for one in range(10)]
        filling = threading.Thread(target=fill)
        filling.start()
        async with asyncio.timeout(120), small.running(clients):
            await serve_until_it_ends()
            filling.join()
            ballast.unlink()
            await serve_until_it_ends()

    asyncio.run(run())
    assert ends == [1, 0]
    check(out, seen)
