"""Who is selected: a uniform sample of those who check in, whoever polls, and who is silent comes last.

Time is a number here, that of the check-ins that come next.
"""

import asyncio
import contextlib
import heapq
import math
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL
from fedlm.fl_core.deployment.server import client_registry
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers
from fedlm.fl_core.deployment.server.client_service import ClientService
from fedlm.fl_core.deployment.server.local_rounds import LocalCollection, LocalRounds
from fedlm.fl_core.deployment.server.reports.attempt import Attempt
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.round_loop import RoundPlan
from tests.deployment import small_deployment as small
from tests.deployment.open_round import in_round

ARTIFACT = SimpleNamespace(description=messages.Artifact())
REQUEST = messages.CheckInRequest(protocol=PROTOCOL, client_version="test")


def attempt_at(round_number, now):
    plan = RoundPlan(round_number, np.zeros(0, np.int64), 0, 1.0)
    return Attempt(plan, ARTIFACT, None, now)


class Crowd:
    """Identities that come when they are asked to, but for some, which poll."""

    def __init__(self, out, identities, pollers, every):
        self.identities, self.pollers, self.every, self.now = identities, pollers, every, 0.0
        self.state, self.drawn, self.random = SqlState(sqlite_url(out / "state.db")), Counter(), random.Random(1)
        self.out = out

    async def run(self, rounds, seconds):
        settings = small.deployment(cohort_size=20, minimum_reports=1, over_selection=1.0, check_in_seconds=10.0)
        service = ClientService.make(small.task(settings), self.state, self.out)
        local = LocalRounds(service)
        local._clock = lambda: self.now
        unlimited = SimpleNamespace(call=lambda peer: None, carry=lambda peer, size: None)
        handlers = ClientHandlers(local, service.offer, service.receiver, service.pacing, unlimited)
        calls = [(self.random.uniform(0, 10), one) for one in range(self.identities)]
        heapq.heapify(calls)
        for round_number in range(rounds):
            collection = local._collecting = LocalCollection(attempt_at(round_number, self.now), service.rules)
            ends, trained = math.inf, set()
            while self.now < ends:
                self.now, one = heapq.heappop(calls)
                collection.look(self.now)
                reply = await handlers.check_in(f"client{one}", REQUEST)
                number = local.registry.number_of(f"client{one}")
                if reply.WhichOneof("answer") == "selected" and number not in trained:
                    trained.add(number)
                    self.drawn[one] += 1
                    wait = seconds + service.pacing.wait(self.identities)
                    local.ask_back(number, wait)
                else:
                    wait = reply.come_back.seconds
                wait = self.every if one < self.pollers else wait + self.random.uniform(0, 0.2)
                heapq.heappush(calls, (self.now + wait, one))
                if ends == math.inf and len(collection.attempt.participants) >= 20:
                    ends = self.now + seconds
            local._collecting = None


@pytest.mark.long
def test_who_polls_most_is_selected_no_more_often(tmp_path, monkeypatch):
    """Eight of 200 poll twice a second and expect a twenty-fifth of 2,000 selections; that uniform draws give them
    more than 125 has a probability below 1e-6. First come, first served gave them more than half."""
    crowd = Crowd(tmp_path, identities=200, pollers=8, every=0.5)
    monkeypatch.setattr(client_registry.time, "monotonic", lambda: crowd.now)
    with contextlib.closing(crowd.state):
        asyncio.run(crowd.run(rounds=100, seconds=60.0))
    total = sum(crowd.drawn.values())
    assert total > 0.7 * 100 * 20
    theirs = sum(crowd.drawn[one] for one in range(8))
    assert theirs <= stats.binom.isf(1e-6, total, 8 / 200)


def test_draws_are_uniform():
    """Pearson's statistic of 600 draws of 10 of 40; by chance above the bound with probability 1e-6."""
    rules = RoundRules(10, 5, 1.0, 60.0, 60.0)
    counts = np.bincount([one for _ in range(600) for one in rules.draw(range(40), [])], minlength=40)
    expected, share = 600 * 10 / 40, 10 / 40
    statistic = np.sum((counts - expected) ** 2) / (expected * (1 - share)) * 39 / 40
    assert statistic < stats.chi2.isf(1e-6, 39)


def collection_of(now=0.0, late=(), **changes):
    rules = {"goal": 10, "minimum": 8, "over_selection": 1.2, "selection_seconds": 30.0, "reporting_seconds": 100.0}
    rules = RoundRules(**rules | {"window_seconds": 10.0} | changes)
    return LocalCollection(attempt_at(0, now), rules, lambda client: client in late)


def test_nobody_is_selected_before_the_window_ends_and_one_ticket_is_all_one_gets():
    collection = collection_of()
    for client in [0] * 50 + list(range(30)):
        assert collection.seconds_to_draw(client, 1.0) == 10.0
        collection.checked_in.add(client)
        assert not collection.wants(client, 1.0)
    collection.look(10.9)
    assert not collection.attempt.participants
    collection.look(11.0)
    assert len(collection.attempt.participants) == 12
    assert collection.seconds_to_draw(40, 11.0) is None
    assert not collection.wants(40, 11.0)


def test_where_too_few_came_in_time_all_are_drawn_and_others_may_come():
    collection = collection_of()
    for client in range(5):
        collection.seconds_to_draw(client, 0.0)
    collection.look(10.0)
    assert sorted(collection.attempt.participants) == list(range(5))
    assert collection.wants(7, 12.0)
    assert not collection.wants(7, 41.0)


def test_who_was_silent_comes_last():
    late = range(5)
    for others, drawn in ((20, 0), (8, 0), (6, 2)):
        collection = collection_of(late=late)
        for client in range(5 + others):
            collection.seconds_to_draw(client, 0.0)
        collection.look(10.0)
        assert sum(client in late for client in collection.attempt.participants) == drawn


def test_others_take_the_place_of_who_is_silent_before_the_deadline():
    collection = collection_of(window_seconds=0.0)
    for client in range(12):
        collection.select(client, 0.0)
    for client in range(6):
        participant = collection.attempt.participants[client]
        participant.receipt = messages.UploadReply(status="ACCEPTED")
        collection.attempt.accepted.append(client)
    collection.look(49.0)
    assert not collection.wants(20, 49.0)
    assert collection.next_moment(49.0) == 1.0
    collection.look(50.0)
    taken = 0
    while collection.wants(20 + taken, 51.0):
        collection.select(20 + taken, 51.0)
        taken += 1
    # Four reports are missing, and a fifth more are asked for.
    assert taken == 5
    # Who was let in a second ago is not late, unless the round needs its deadline.
    assert collection.silent(51.0) == [*range(6, 12)]
    assert collection.attempt.deadline == 100.0
    assert collection.silent(100.0) == [*range(6, 12), *range(20, 25)]


@pytest.mark.long
def test_who_was_silent_is_remembered_by_the_server(tmp_path):
    """Five of 13 identities are silent, two of which begin an upload that never ends: the attempt needs its deadline,
    and the next one does without them."""

    async def drip(round_, name, configuration):
        header, content = round_.report(configuration)
        await round_.send(name, header, content, chunk=10, pause=0.05)

    async def selected(round_, names):
        chosen = {}
        for _ in range(2):
            for name in names:
                reply = await round_.check_in(name)
                if reply.WhichOneof("answer") == "selected":
                    chosen[name] = reply.selected
            await asyncio.sleep(0.2)
        return chosen

    async def scenario(round_):
        names = [f"client{one}" for one in range(13)]
        chosen = await selected(round_, names)
        assert chosen.keys() == set(names)
        for name in names[5:]:
            header = messages.UploadHeader(attempt=chosen[name].attempt, upload_id=b"1", outcome="NO_EXAMPLES")
            await round_.send(name, header)
        drips = [asyncio.create_task(drip(round_, name, chosen[name])) for name in names[:2]]
        assert await round_.collecting is None
        await round_.open()
        assert (await selected(round_, names)).keys() == set(names[5:])
        records = {one.identity: one.late_until for one in round_.state.clients()}
        assert {name for name in names if records[name] > 0} == set(names[:5])
        await asyncio.gather(*drips)

    times = {"window_seconds": 0.1, "selection_seconds": 0.6, "reporting_seconds": 0.4, "check_in_seconds": 0.05}
    in_round(tmp_path, scenario, cohort_size=12, minimum_reports=8, **times)
