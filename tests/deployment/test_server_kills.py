"""Killing the server of a private deployment: it comes back, and what it promised holds.

`FEDLM_SERVER_KILLS` sets how many kills there are, and `FEDLM_COORDINATOR_KILLS` those of the coordinator of several
processes; the defaults keep the suite quick.
"""

import os

import pytest

from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, sqlite_url
from tests.deployment import kills
from tests.deployment import small_deployment as small

SERVER_KILLS = int(os.environ.get("FEDLM_SERVER_KILLS", "3"))
COORDINATOR_KILLS = int(os.environ.get("FEDLM_COORDINATOR_KILLS", "2"))


@pytest.mark.long
async def test_a_server_that_is_killed_comes_back_and_keeps_its_promises(tmp_path, free_port):
    settings = small.deployment(**kills.SETTINGS)

    async def run_once(folder, rng, most):
        seen, out = kills.Seen(), folder / "run"
        async with small.running(seen.clients(free_port, folder)):
            words = settings, out, free_port
            killed = await kills.run_and_kill(small.serve_in_process, words, out, seen, rng, most)
        kills.check(out, sqlite_url(out / DATABASE_FILE), settings, seen.models)
        return killed

    await kills.run_until_killed(tmp_path, SERVER_KILLS, run_once)


@pytest.mark.long
async def test_a_coordinator_that_is_killed_comes_back_while_aggregators_and_clients_carry_on(tmp_path, free_port):
    settings = small.deployment(**kills.SETTINGS | {"rounds": 6})

    async def run_once(folder, rng, most):
        url, seen, out = sqlite_url(folder / "state.db"), kills.Seen(), folder / "run"
        with small.aggregator_processes(3, settings, folder, url, free_port) as processes:
            async with small.running(seen.clients(free_port, folder)):
                words = settings, out, url
                killed = await kills.run_and_kill(small.coordinate_in_process, words, out, seen, rng, most)
            for process in processes:
                process.join(small.PATIENCE)
            assert [process.exitcode for process in processes] == [0, 0, 0], "an aggregator did not carry on"
        kills.check(out, url, settings, seen.models)
        return killed

    await kills.run_until_killed(tmp_path, COORDINATOR_KILLS, run_once)
