"""Killing the server of a private deployment at random instants: it comes back, and what it promised holds.

`FEDLM_SERVER_KILLS` sets how many kills there are; the default keeps the suite quick.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sqlite3
import time
from collections import defaultdict

import numpy as np
import small_deployment as small

from fl_core.privacy.accounting import account
from fl_core.privacy.ledger import PrivacyLedger
from fl_core.serving.state_sql import DATABASE_FILE
from fl_core.transport.grpc_client import GrpcChannel

KILLS = int(os.environ.get("FEDLM_SERVER_KILLS", "3"))
PRIVACY = small.PRIVACY | {"noise_seed": "entropy", "min_separation": 3, "max_participations": 4}
ROUNDS, CLIENTS = 12, 10


def settings():
    return small.deployment(
        **PRIVACY, rounds=ROUNDS, cohort_size=2, minimum_reports=2, over_selection=1.5, reporting_seconds=5.0
    )


class Watched(GrpcChannel):
    """Notes which models are offered for each round."""

    def __init__(self, server, name, seen):
        super().__init__(server, name)
        self._seen = seen

    async def check_in(self, request):
        reply = await super().check_in(request)
        if reply.HasField("selected"):
            self._seen[reply.selected.round_number].add(reply.selected.parameters.digest)
        return reply


async def run_and_kill(out, port, folder, rng, seen, kills):
    """Kill the server up to so many times while clients carry on; returns how often."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["small_deployment"])
    clients, killed = [], 0
    for one in range(CLIENTS):
        client = small.make_client(port, folder, one)
        client._dial = lambda name=f"client{one}": Watched(f"127.0.0.1:{port}", name, seen)
        clients.append(client)
    async with small.running(clients):
        while not (out / "summary.json").exists():
            process = context.Process(target=small.serve_in_process, args=(settings(), out, port))
            process.start()
            end = time.monotonic() + (float(rng.uniform(0, 4)) if killed < kills else 60)
            while process.is_alive() and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert killed < kills or not process.is_alive(), "the server does not come to its end"
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL)
    return killed


def rows_of(out, query):
    connection = sqlite3.connect(out / DATABASE_FILE)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def check(out, models):
    assert all(len(digests) == 1 for digests in models.values()), "two models went out with the noise of one round"
    ledger = PrivacyLedger(out / "privacy/ledger.jsonl")
    releases = [record["rounds"] for record in ledger.records if record["kind"] == "release"]
    assert releases == sorted(set(releases))
    assert {rounds for (rounds,) in rows_of(out, "select rounds from releases")} <= set(releases)
    assert ledger.spent().epsilon <= account(ledger.plan, settings().delta).epsilon * (1 + 1e-6)

    took_part = defaultdict(list)
    for number, client in rows_of(out, "select round_number, client from participations order by round_number"):
        took_part[client].append(number)
    for rounds in took_part.values():
        assert min(np.diff(rounds), default=3) >= 3, "a client took part again too soon"
        assert len(rounds) <= 4
    finished = rows_of(out, "select round_number, reported from attempts where outcome = 'finished'")
    assert len(finished) == len({number for number, _ in finished}), "a round counted twice"
    assert sum(reported for _, reported in finished) == sum(map(len, took_part.values()))
    recorded = [json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert recorded == sorted(set(recorded))
    assert {rounds - 1 for rounds in releases} == set(recorded) <= {number for number, _ in finished}


def test_a_server_that_is_killed_comes_back_and_keeps_its_promises(tmp_path, free_port):
    rng, started, kills, runs = np.random.default_rng(int(time.time() * 1e6)), time.monotonic(), 0, 0
    while kills < KILLS:
        folder, seen = tmp_path / str(runs), defaultdict(set)
        folder.mkdir()
        kills += asyncio.run(run_and_kill(folder / "run", free_port, folder, rng, seen, KILLS - kills))
        check(folder / "run", seen)
        runs += 1
    print(f"{kills} kills in {runs} runs, {time.monotonic() - started:.0f} s")
