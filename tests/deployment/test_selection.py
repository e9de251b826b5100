"""Who is selected, and counts: a uniform sample of those who check in, whoever polls or answers at once.

Time is a number here, that of the check-ins that come next.
"""

import asyncio
import contextlib
import dataclasses
import heapq
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.server import client_registry
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers
from fedlm.fl_core.deployment.server.client_service import ClientService
from fedlm.fl_core.deployment.server.local_collection import LocalCollection
from fedlm.fl_core.deployment.server.local_rounds import LocalRounds
from fedlm.fl_core.deployment.server.reports.attempt import Attempt
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.state.state import LATE_ROUNDS, SILENT_ONCE
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.rounds.round_loop import RoundPlan
from tests.deployment import small_deployment as small
from tests.deployment.open_round import in_round
from tests.support.uploads import UploadInPieces, pieces_of

ARTIFACT = SimpleNamespace(description=messages.Artifact())
REQUEST = messages.CheckInRequest(protocol=PROTOCOL, client_version="test")


def attempt_at(round_number, now):
    plan = RoundPlan(round_number, np.zeros(0, np.int64), 0, 1.0)
    return Attempt(plan, ARTIFACT, None, now)


class Answers:
    """In place of a `Receiver`: takes a report in without a byte of it."""

    async def receive(self, collection, number, header, upload):
        participant = collection.attempt.participants[number]
        if (reply := collection.claim(number, header.upload_id)) is None:
            reply = messages.UploadReply(status="ACCEPTED")
            collection.attempt.accepted.append(number)
            participant.receipt = reply
            collection.answered(number, reply)
        return reply

    def answer_of_the_past(self, number, header):
        return messages.UploadReply(status="LATE")

    async def close(self, attempt):
        attempt.closed = True


class Crowd:
    """Identities of which some answer at once, and poll. The others take their time, and some drop out of a round.

    Attributes:
      lurking: whether those who poll call only where there was no draw yet in a round, as if they knew.
      selected, accepted: how often each was.
      seconds: how long each round took, with the attempts at it that did not count.
    """

    def __init__(self, identities, quick, drops=0.0, lurking=False, median=60.0):
        self.identities, self.quick, self.drops, self.median = identities, quick, drops, median
        self.lurking = lurking
        self.now, self.random = 0.0, random.Random(1)
        self.selected, self.accepted, self.seconds = Counter(), Counter(), []
        self.calls = [(self.random.uniform(0, 10), one, None) for one in range(identities)]

    async def run(self, service, rounds):
        service = dataclasses.replace(service, receiver=Answers())
        self.local = LocalRounds(service)
        unlimited = SimpleNamespace(call=lambda peer: None, carry=lambda peer, size: None)
        self.handlers = ClientHandlers(
            self.local, service.offer, service.receiver, pacing=service.pacing, limiter=unlimited
        )
        heapq.heapify(self.calls)
        while len(self.seconds) < rounds:
            begun = self.now
            while not await self._attempt(len(self.seconds)):
                pass
            self.seconds.append(self.now - begun)

    async def _attempt(self, round_number):
        attempt = attempt_at(round_number, self.now)
        total = SimpleNamespace(finish=lambda: None, told=None)
        collecting = asyncio.create_task(self.local.collect(attempt.plan, ARTIFACT, total))
        await asyncio.sleep(0)
        collection = self.local.collecting
        while not collection.finished(self.now):
            moment = self.now + collection.next_moment(self.now)
            if moment <= self.calls[0][0]:
                self.now = moment
            else:
                self.now, one, token = heapq.heappop(self.calls)
                await (self._check_in(one) if token is None else self._answer(one, token))
            collection.changed.set()
            for _ in range(3):
                await asyncio.sleep(0)
        finished = await collecting is not None
        numbers = {self.local.registry.number_of(f"client{one}"): one for one in range(self.identities)}
        if finished:
            self.selected.update(numbers[number] for number in collection.attempt.participants)
            self.accepted.update(numbers[number] for number in collection.attempt.accepted)
        return finished

    def _call(self, one, seconds, token=None):
        heapq.heappush(self.calls, (self.now + seconds, one, token))

    async def _check_in(self, one):
        drawn = self.local.collecting.attempt.participants
        if self.lurking and one < self.quick and drawn and self.local.registry.number_of(f"client{one}") not in drawn:
            self._call(one, 1.0)
            return
        reply = await self.handlers.check_in(f"client{one}", REQUEST)
        if reply.WhichOneof("answer") != "selected":
            self._call(one, 1.0 if one < self.quick else reply.come_back.seconds + self.random.uniform(0, 0.2))
        elif one < self.quick:
            self._call(one, 0.1, reply.selected.attempt)
        elif self.random.random() < self.drops:
            self._call(one, self.random.uniform(0, 300.0))
        else:
            self._call(one, self.median * self.random.lognormvariate(0, 0.5), reply.selected.attempt)

    async def _answer(self, one, token):
        header = messages.UploadHeader(attempt=token, upload_id=b"1", outcome="TRAINED")
        reply = await self.handlers.upload(f"client{one}", UploadInPieces(header, pieces_of(b"")))
        self._call(one, 1.0 if one < self.quick else reply.come_back_seconds)


def in_crowd(crowd, out, monkeypatch, rounds, **settings):
    monkeypatch.setattr(client_registry.time, "monotonic", lambda: crowd.now)
    with contextlib.closing(SqlState(sqlite_url(out / "state.db"))) as state:
        settings = small.deployment(minimum_reports=1, check_in_seconds=10.0, selection_seconds=60.0, **settings)
        asyncio.run(crowd.run(ClientService.make(small.task(settings), state, out), rounds))
    return crowd


@pytest.mark.long
@pytest.mark.parametrize(
    ("cohort_size", "over_selection", "drops", "lurking"),
    [(20, 1.0, 0.0, False), (10, 1.3, 0.1, True)],
)
def test_who_answers_at_once_counts_no_more_often(tmp_path, monkeypatch, cohort_size, over_selection, drops, lurking):
    """Eight of 40 answer at once, never drop out and poll every second. They expect a fifth of the clients that are
    selected, and of the reports that count what a fifth has of all that do not drop out. Draws are without replacement,
    and so vary less than the binomial distributions whose bounds each case leaves with probability 2e-6 at most. With
    10 reports there are more identities than twice those of a round, which are asked back later: lurking in wait for
    the draws, the eight were a third of the reports."""
    crowd = Crowd(identities=40, quick=8, drops=drops, lurking=lurking)
    settings = {"cohort_size": cohort_size, "over_selection": over_selection, "reporting_seconds": 300.0}
    in_crowd(crowd, tmp_path, monkeypatch, rounds=600 // cohort_size, **settings)
    for counted, share in ((crowd.selected, 8 / 40), (crowd.accepted, 8 / (8 + 32 * (1 - drops)))):
        total, theirs = sum(counted.values()), sum(counted[one] for one in range(8))
        assert total >= 500
        assert theirs <= stats.binom.isf(1e-6, total, share), (theirs, total)


def test_draws_are_uniform():
    """Pearson's statistic of 600 draws of 10 of 40; by chance above the bound with probability 1e-6."""
    rules = RoundRules(10, 5, 1.0, 60.0, 60.0)
    counts = np.bincount([one for _ in range(600) for one in rules.draw(range(40), [], 0, 10)], minlength=40)
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


def test_others_are_drawn_beside_who_is_silent():
    collection = collection_of(goal=10, over_selection=1.0)
    for client in range(10):
        collection.seconds_to_draw(client, 0.0)
    assert collection.look(10.0) == set()
    assert not collection.finished(10.0)
    assert collection.look(60.0) == set()
    assert collection.seconds_to_draw(3, 61.0) is None, "who was drawn before is not drawn again"
    for client in range(20, 60):
        assert collection.seconds_to_draw(client, 61.0) == 10.0
        assert not collection.wants(client, 61.0)
    undrawn = collection.look(71.0)
    drawn = collection.attempt.participants.keys() - range(10)
    assert len(drawn) == 10
    assert undrawn == set(range(20, 60)) - drawn


def test_a_round_ends_once_all_that_it_selected_have_answered():
    collection = collection_of(goal=2, minimum=1, over_selection=1.5, window_seconds=0.0)
    for client in range(3):
        collection.select(client, 0.0)
    for client in range(3):
        assert not collection.finished(1.0)
        assert collection.claim(client, b"1") is None
        collection.attempt.participants[client].receipt = messages.UploadReply(status="ACCEPTED")
        collection.attempt.accepted.append(client)
    assert collection.finished(1.0)


@pytest.mark.long
async def test_who_was_silent_twice_is_remembered_by_the_server(tmp_path):
    """Five of 13 identities are silent, two of which begin an upload that never ends: two attempts need their deadline,
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

    times = {"window_seconds": 0.1, "selection_seconds": 0.6, "reporting_seconds": 0.4, "check_in_seconds": 0.05}
    async with in_round(tmp_path, cohort_size=12, minimum_reports=8, **times) as round_:
        names, drips = [f"client{one}" for one in range(13)], []
        for until in (SILENT_ONCE, 1 + LATE_ROUNDS):
            await asyncio.sleep(0.1)
            chosen = await selected(round_, names)
            assert chosen.keys() == set(names)
            for name in names[5:]:
                header = messages.UploadHeader(attempt=chosen[name].attempt, upload_id=b"1", outcome="NO_EXAMPLES")
                await round_.send(name, header)
            drips += [asyncio.create_task(drip(round_, name, chosen[name])) for name in names[:2]]
            assert await round_.collecting is None
            records = {one.identity: one.late_until for one in round_.state.clients()}
            assert records == dict.fromkeys(names, 0) | dict.fromkeys(names[:5], until)
            await round_.open()
        await asyncio.sleep(0.1)
        assert (await selected(round_, names)).keys() == set(names[5:])
        await asyncio.gather(*drips)
