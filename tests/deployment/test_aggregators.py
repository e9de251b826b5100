"""Several processes receive reports and add them up; the coordinator merges their sums, each once or not at all."""

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from fedlm.fedlm_client.limits import Conditions
from fedlm.fl_core.deployment.aggregators import silence
from fedlm.fl_core.deployment.aggregators.shard import Shard
from fedlm.fl_core.deployment.aggregators.shared_records import SharedRound
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.operations.listener import OperatorApplication, OperatorListener
from fedlm.fl_core.deployment.roles import aggregate, agreement, coordinate
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.deployment.transparency.logged_run import LoggedRun
from fedlm.fl_core.deployment.transparency.stored_log import StoredLog
from fedlm.fl_core.rounds.cohorts import UniformSampler
from fedlm.fl_core.updates.update_bytes import pack_parameters
from tests.deployment import small_deployment as small
from tests.deployment.kills import rows_of
from tests.deployment.plain_loop import final_parameters, simulate

EVERYONE = 8
ALL_REPORT = {"cohort_size": EVERYONE, "minimum_reports": EVERYONE, "over_selection": 1.0}


def register_clients(url):
    """Give the clients the numbers that the simulation knows them by."""
    database = Database(url)
    SharedRounds(database).number_clients([f"client{one}" for one in range(EVERYONE)])
    database.close()


@contextlib.asynccontextmanager
async def aggregators_here(count, settings, folder, url, port, operators=None):
    """Run aggregators in this process, all on one port, until the run is over."""
    endpoints = small.endpoints(settings, port, share_port=True, operators=operators, linger=0.5)
    async with asyncio.TaskGroup() as group:
        # One that fails ends what is inside.
        for one in range(count):
            group.create_task(aggregate(small.task(settings), folder / f"aggregator{one}", endpoints, url))
        yield


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(small.PRIVACY | {"min_separation": 1}, id="private"),
        pytest.param(small.LINEAR | {"client_algorithm": "mime_lite"}, id="mime_lite", marks=pytest.mark.thorough),
    ],
)
async def test_three_aggregators_come_to_what_one_loop_over_clients_comes_to(
    tmp_path, free_port, database_url, changes
):
    settings = small.deployment(**changes, **ALL_REPORT, rounds=2, upload_bits=32)
    out, url = tmp_path / "run", database_url
    register_clients(url)
    rows = []
    clients = [small.make_client(free_port, tmp_path, one) for one in range(EVERYONE)]
    here = aggregators_here(3, settings, tmp_path, url, free_port)
    async with asyncio.timeout(small.PATIENCE), here, small.running(clients):
        assert await coordinate(small.task(settings), out, Endpoints(), rows.append, database=url)
    sampler = UniformSampler(EVERYONE, EVERYONE, settings.seed)
    params, expected = simulate(settings, sampler, tmp_path / "simulation")
    compare(out, params, settings.privacy.is_private)
    assert [row["clients"] for row in rows] == [EVERYONE] * 2
    assert (rows[-1]["steps"], rows[-1]["bytes_up"]) == (expected["steps"], expected["bytes_up"])


@pytest.mark.long
async def test_clients_that_were_drawn_for_a_full_round_are_told_so(tmp_path, free_port):
    """They check in after the draw, when every place is taken: by them."""
    settings = small.deployment(
        **ALL_REPORT | {"rounds": 2, "window_seconds": 1.0, "check_in_seconds": 1.0}, reporting_seconds=300.0
    )
    url = sqlite_url(tmp_path / "state.db")
    clients = [small.make_client(free_port, tmp_path, one) for one in range(EVERYONE)]
    here = aggregators_here(2, settings, tmp_path, url, free_port)
    async with asyncio.timeout(60), here, small.running(clients):
        assert await coordinate(small.task(settings), tmp_path / "run", Endpoints(), [].append, database=url)


async def test_operators_see_the_rounds_at_the_coordinator_and_the_calls_at_each_aggregator(tmp_path, free_port):
    settings, shown, rows = small.deployment(**ALL_REPORT, rounds=1), [], []
    url = sqlite_url(tmp_path / "state.db")
    *early, last = (small.make_client(free_port, tmp_path, number) for number in range(EVERYONE))

    def show(overview, metrics):
        shown.append(OperatorListener(OperatorApplication(overview, metrics), "127.0.0.1:0"))
        return shown[-1]

    def get(listener, path):
        return asyncio.to_thread(small.fetch, f"http://127.0.0.1:{listener.port}{path}")

    what = small.task(settings)
    coordinating = asyncio.create_task(
        coordinate(what, tmp_path / "run", Endpoints(operators=show), rows.append, database=url)
    )
    async with asyncio.timeout(small.PATIENCE):
        while not shown:
            await asyncio.sleep(0.05)
        async with aggregators_here(2, settings, tmp_path, url, free_port, show), small.running(early):
            status = {"round": None}
            # The round waits for its last client; when a client was seen comes to the database a second later.
            while (
                not status["round"]
                or status["round"]["reported"] < len(early)
                or status["clients"]["within_a_day"] < len(early)
            ):
                await asyncio.sleep(0.05)
                status = json.loads(await get(shown[0], "/status.json"))
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await get(shown[1], "/status.json")
            metrics = [await get(listener, "/metrics") for listener in shown]
            async with small.running([last]):
                assert await coordinating
    found = status["round"]
    assert (found["round_number"], found["open"], found["goal"]) == (0, True, EVERYONE)
    assert found["checked_in"] >= found["selected"] >= found["reported"] == len(early)
    assert status["run"]["doing"] == "collecting"
    assert status["clients"] == {"known": len(early), "within_a_day": len(early)}
    accepted = [re.search(r'fedlm_reports_total{answer="accepted"} (\d+)', text) for text in metrics]
    assert [int(accepted[0][1]), sum(int(one[1]) for one in accepted)] == [0, len(early)]
    assert [row["clients"] for row in rows] == [EVERYONE]


@pytest.mark.long
@pytest.mark.parametrize("reports", [0, 1])
async def test_an_aggregator_alone_that_is_asked_to_end_hands_over_what_it_has(tmp_path, free_port, reports):
    settings = small.deployment(**small.PRIVACY, cohort_size=2, minimum_reports=1, drain_seconds=600.0)
    url = sqlite_url(tmp_path / "state.db")
    what, database = small.task(settings), Database(url)
    shared = SharedRounds(database)
    SqlState(database).claim("run")
    LoggedRun(StoredLog(database), settings.population, "run", None)
    content = b"".join(pack_parameters(what.model.init(jax.random.key(0))))
    round_ = SharedRound("aa" * 16, 0, 0, 0.1, 0.1, 2, 1, 1, 3, agreement(what), "", "selecting", 600.0)
    named = set()

    async def until(reached):
        # In another thread: the aggregator and the client need this one. There is no coordinator, by whose clock a
        # client that came before the round has rested.
        while not await asyncio.to_thread(reached):
            await asyncio.sleep(0.05)
            await asyncio.to_thread(shared.advance, round_.token, "selecting", 600.0, 0.05)

    with contextlib.closing(database):
        endpoints = small.endpoints(settings, free_port)
        aggregating = asyncio.create_task(aggregate(what, tmp_path / "aggregator", endpoints, url))
        clients = [small.make_client(free_port, tmp_path, one) for one in range(reports)]
        for one in clients:
            one._trainer.depends_on = lambda asked, examples: named.add(asked.run)
        async with asyncio.timeout(small.PATIENCE):
            await until(lambda: shared.current()[1])
            shared.open(round_._replace(parameters=shared.put(content)))
            if reports:
                async with small.running(clients):
                    await until(lambda: shared.claimed(round_.token))
            os.kill(os.getpid(), signal.SIGTERM)
            await aggregating
        assert [one.reports for one in shared.partial_sums(round_.token)] == [1] * reports
        assert named == ({"run"} if reports else set())
        assert shared.tally(round_.token).phase == "selecting"


def compare(out, params, private=True):
    found = jax.tree_util.tree_leaves(final_parameters(out, private))
    for a, b in zip(found, jax.tree_util.tree_leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


class Named:
    """Names the clients that took part in each round of a run."""

    def __init__(self, url):
        self._rounds = rows_of(url, "select round_number, client from participations order by client")

    def sample(self, round_number):
        return np.array([client for number, client in self._rounds if number == round_number], np.int64)


async def kill_one(url, processes, gate, which=-1, reports=EVERYONE // 2):
    """Kill an aggregator of those that hold so many reports of a round that waits for others, by default the one that
    holds the most; returns how many it held."""
    query = "select aggregator, count(*) from selections where state = 'claimed' group by aggregator order by 2"
    held = []
    while sum(count for _, count in held) < reports:
        await asyncio.sleep(0.05)
        held = await asyncio.to_thread(rows_of, url, query)
    name, count = held[which]
    (process,) = [one for one, log in processes.items() if f'"{name}"' in log.read_text()]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    gate.set()
    return count


@pytest.mark.long
async def test_the_reports_of_an_aggregator_that_is_killed_are_lost_and_the_round_ends(
    tmp_path, free_port, monkeypatch
):
    # The others are not silent for so long, however busy the machine is.
    monkeypatch.setattr(silence, "LEASE_SECONDS", 10.0)
    everyone = {"cohort_size": EVERYONE, "minimum_reports": 2, "over_selection": 1.0, "min_separation": 1}
    patience = {"selection_seconds": 60.0, "reporting_seconds": 60.0}
    settings = small.deployment(**small.PRIVACY | everyone | patience, rounds=2, upload_bits=32)
    out, url, gate = tmp_path / "run", sqlite_url(tmp_path / "state.db"), threading.Event()
    register_clients(url)
    patient = ThreadPoolExecutor(EVERYONE)

    def idle():
        # Training waits for the kill; what is asked in the event loop does not.
        return threading.current_thread() is threading.main_thread() or gate.wait(small.PATIENCE)

    def make(one):
        waits = {"conditions": Conditions(idle=idle), "workers": patient} if one % 2 else {}
        return small.make_client(free_port, tmp_path, one, **waits)

    with small.aggregator_processes(3, settings, tmp_path, url, free_port) as processes:
        rows, clients = [], [make(one) for one in range(EVERYONE)]
        async with asyncio.timeout(small.PATIENCE), small.running(clients):
            while len(await asyncio.to_thread(rows_of, url, "select name from aggregators")) < len(processes):
                await asyncio.sleep(0.1)
            killing = asyncio.create_task(kill_one(url, processes, gate))
            assert await coordinate(small.task(settings), out, Endpoints(), rows.append, database=url)
            held = await killing
        for process in processes:
            process.join(small.PATIENCE)
        assert sorted(process.exitcode for process in processes) == [-signal.SIGKILL, 0, 0]
    attempts = rows_of(url, "select outcome, selected, reported, lost, refused, declined from attempts order by number")
    assert attempts[0] == ("finished", EVERYONE, EVERYONE - held, held, 0, 0)
    assert attempts[1:] == [("finished", EVERYONE, EVERYONE, 0, 0, 0)]
    assert [row["clients"] for row in rows] == [EVERYONE - held, EVERYONE]
    # What was released is the sum of the reports of those who took part, each of them once.
    compare(out, simulate(settings, Named(url), tmp_path / "simulation")[0])


@pytest.mark.long
async def test_a_sum_that_finds_no_room_on_the_disk_is_handed_over_once_there_is(
    tmp_path, free_port, monkeypatch, largest_file, caplog
):
    settings = small.deployment(**small.PRIVACY | ALL_REPORT | {"min_separation": 1}, rounds=1, upload_bits=32)
    out, url, real, full = tmp_path / "run", sqlite_url(tmp_path / "state.db"), Shard.hand_over, [True] * 2
    one_at_a_time = threading.Lock()
    register_clients(url)

    def hand_over(self, leaving):
        with one_at_a_time, largest_file(4096) if full and full.pop() else contextlib.nullcontext():
            return real(self, leaving)

    monkeypatch.setattr(Shard, "hand_over", hand_over)
    rows, clients = [], [small.make_client(free_port, tmp_path, one) for one in range(EVERYONE)]
    here = aggregators_here(2, settings, tmp_path, url, free_port)
    async with asyncio.timeout(small.PATIENCE), here, small.running(clients):
        assert await coordinate(small.task(settings), out, Endpoints(), rows.append, database=url)
    assert not full
    said = [record.fields["why"] for record in caplog.records if record.getMessage() == "state_not_reached"]
    assert any("state.db" in why and "does its disk have room?" in why for why in said)
    assert [row["clients"] for row in rows] == [EVERYONE]
    compare(out, simulate(settings, Named(url), tmp_path / "simulation")[0])
