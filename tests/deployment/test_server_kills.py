"""Killing the server of a private deployment: it comes back, and what it promised holds.

`FEDLM_SERVER_KILLS` sets how many kills there are; the default keeps the suite quick.
"""

import asyncio
import os
import time
from collections import Counter

import kills
import numpy as np
import small_deployment as small

from fl_core.serving.state_sql import DATABASE_FILE, sqlite_url

KILLS = int(os.environ.get("FEDLM_SERVER_KILLS", "3"))


async def run_once(folder, port, rng, most):
    """Run a deployment from its beginning to its end; returns where kills fell, and how long nobody answered."""
    settings, out, seen = small.deployment(**kills.SETTINGS), folder / "run", kills.Seen()
    async with small.running(seen.clients(port, folder)):
        fell = await kills.run_and_kill(small.serve_in_process, (settings, out, port), out, seen, rng, most)
    kills.check(out, sqlite_url(out / DATABASE_FILE), settings, seen.models)
    return fell, sum(seen.seconds_away)


def test_a_server_that_is_killed_comes_back_and_keeps_its_promises(tmp_path, free_port):
    rng, started = np.random.default_rng(int(time.time() * 1e6)), time.monotonic()
    fell, runs, seconds_away = Counter(), 0, 0.0
    while fell.total() < KILLS:
        folder = tmp_path / str(runs)
        folder.mkdir()
        found, away = asyncio.run(run_once(folder, free_port, rng, KILLS - fell.total()))
        fell, runs, seconds_away = fell + found, runs + 1, seconds_away + away
        print(f"{fell.total()} kills in {runs} runs, {time.monotonic() - started:.0f} s", end="; ", flush=True)
        print(f"no server answered for {seconds_away:.0f} s; {dict(fell)}", flush=True)
