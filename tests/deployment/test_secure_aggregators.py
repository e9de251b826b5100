"""Secure sums by way of several aggregators: each has a part that is noise, and the coordinator merges them."""

import asyncio
import os
import signal

import numpy as np
import pytest

from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.roles import aggregate, coordinate
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from tests.deployment import small_deployment as small
from tests.deployment.kills import rows_of
from tests.deployment.plain_loop import final_parameters, simulate
from tests.deployment.test_aggregators import kill_one, register_clients
from tests.deployment.test_secure_sums import COUNT, FLOORS, NOISED, PROMPT, Everybody, flat, make_credentials, sums_of

SETTINGS = NOISED | PROMPT | {"minimum_reports": 5, "rounds": 2, "max_participations": 6, "reporting_seconds": 60.0}


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    return make_credentials(tmp_path_factory.mktemp("secure") / "keys")


def members(port, folder, clients):
    return [
        small.make_client(port, folder, one, credentials=mine, sums=sums_of(mine, FLOORS, one))
        for one, mine in enumerate(clients)
    ]


class Gate:
    """Keeps calls of clients waiting, until it is opened."""

    def __init__(self, monkeypatch, name, waits):
        self.opened, self.seen, real = asyncio.Event(), 0, getattr(HttpChannel, name)

        async def call(channel, asked, *rest):
            if waits(self, asked):
                self.seen += 1
                await self.opened.wait()
            return await real(channel, asked, *rest)

        monkeypatch.setattr(HttpChannel, name, call)

    def set(self):
        self.opened.set()


@pytest.mark.long
async def test_aggregators_without_their_noise_have_the_integers_of_their_simulation(
    credentials, tmp_path, free_port, monkeypatch
):
    settings = small.deployment(**NOISED | PROMPT | {"lattice_bits": 16})
    monkeypatch.setattr(Lattice, "drawn_noise", lambda lattice, _: np.zeros(lattice.dimension, np.int64))
    (keys, clients), url, rows = credentials, sqlite_url(tmp_path / "state.db"), []
    what, listening = small.task(settings, keys=keys), small.endpoints(settings, free_port, True, linger=0.5, keys=keys)
    register_clients(url)
    async with asyncio.timeout(small.PATIENCE), asyncio.TaskGroup() as group:
        for one in range(3):
            group.create_task(aggregate(what, tmp_path / f"aggregator{one}", listening, url))
        async with small.running(members(free_port, tmp_path, clients)):
            assert await coordinate(what, tmp_path / "run", Endpoints(), rows.append, database=url)
    assert [row["clients"] for row in rows] == [COUNT] * 2
    params, _ = simulate(settings, Everybody(), tmp_path / "simulation")
    np.testing.assert_array_equal(flat(final_parameters(tmp_path / "run", True)), flat(params))


@pytest.mark.long
async def test_an_aggregator_that_is_killed_before_survivors_are_named_costs_its_members(
    credentials, tmp_path, free_port, monkeypatch
):
    # Without as many the others are still enough, whichever aggregators they came to.
    first = COUNT - SETTINGS["minimum_reports"]

    def waits(gate, header):
        gate.calls = getattr(gate, "calls", 0) + 1
        return gate.calls > first

    settings, (keys, clients), rows = small.deployment(**SETTINGS), credentials, []
    gate, url = Gate(monkeypatch, "upload", waits), sqlite_url(tmp_path / "state.db")
    with small.aggregator_processes(3, settings, tmp_path, url, free_port, keys) as processes:
        async with asyncio.timeout(small.PATIENCE), small.running(members(free_port, tmp_path, clients)):
            what = small.task(settings, keys=keys)
            coordinating = asyncio.create_task(
                coordinate(what, tmp_path / "run", Endpoints(), rows.append, database=url)
            )
            while not (tmp_path / "state.db").exists():
                await asyncio.sleep(0.1)
            lost = await kill_one(url, processes, gate, which=0, reports=first)
            assert await coordinating
    assert [row["clients"] for row in rows] == [COUNT - lost, COUNT]
    attempts = rows_of(url, "select outcome, selected, reported, lost from attempts order by number")
    assert attempts == [("finished", COUNT, COUNT - lost, lost), ("finished", COUNT, COUNT, 0)]


@pytest.mark.long
@pytest.mark.parametrize("whom", ["aggregator", "coordinator"])
async def test_who_is_killed_once_survivors_are_named_costs_nothing_or_the_round(
    credentials, tmp_path, free_port, monkeypatch, whom
):
    settings, (keys, clients), out = small.deployment(**SETTINGS), credentials, tmp_path / "run"
    gate = Gate(monkeypatch, "secure_sum", lambda gate, asked: asked.step == "reveal")
    url, log = sqlite_url(tmp_path / "state.db"), tmp_path / "coordinator.log"

    def coordinator():
        return small.in_process(small.coordinate_in_process, settings, out, url, log, keys)

    with small.aggregator_processes(2, settings, tmp_path, url, free_port, keys) as processes:
        async with asyncio.timeout(small.PATIENCE), small.running(members(free_port, tmp_path, clients)):
            coordinating = coordinator()
            while not gate.seen:
                await asyncio.sleep(0.1)
            if whom == "coordinator":
                os.kill(coordinating.pid, signal.SIGKILL)
                coordinating.join()
                coordinating = coordinator()
                gate.set()
            else:
                await kill_one(url, processes, gate)
            await asyncio.to_thread(coordinating.join, small.PATIENCE)
            assert coordinating.exitcode == 0, log.read_text()[-2000:]
    reported = rows_of(url, "select outcome, reported from attempts order by number")
    assert reported == [("finished", COUNT)] * 2
    kinds = [record["kind"] for record in PrivacyLedger(out / "privacy/ledger.jsonl").records]
    first = ["seen", "restart"] if whom == "coordinator" else ["seen", "intent", "release"]
    assert kinds == ["plan", *first, "seen", "intent", "release"]
