"""What clients of secure rounds cannot do: keep one going, take places or bytes, in one process and with others."""

import asyncio
import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.secure_aggregation import wire
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply
from fedlm.fl_core.deployment.aggregators.member_messages import MemberMessages
from fedlm.fl_core.deployment.aggregators.secure_runner import SecureCohortRunner
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.protocol.errors import TooManyCallsError
from fedlm.fl_core.deployment.server.client_service import make_offer, secure_settings
from fedlm.fl_core.deployment.server.round_rules import DrainedError
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.rounds.round_loop import RoundPlan
from tests.deployment import small_deployment as small
from tests.deployment.open_round import in_round
from tests.support import secure_cohorts as cohorts

SELECTED = 3
SECURE = {
    "aggregation": "secure",
    "update_clip_norm": 0.5,
    "upload_bits": 32,
    "over_selection": 1.0,
    "window_seconds": 0.0,
    "check_in_seconds": 10.0,
    "drain_seconds": 0.5,
}
SECURE |= {"cohort_size": SELECTED, "minimum_reports": SELECTED, "reporting_seconds": small.PATIENCE}
AUTHORITIES = (cohorts.authority("ours")[0],)


def keys_of(index, name):
    return wire.write_advertisement(cohorts.member(index, name=name).advertise())


@contextlib.asynccontextmanager
async def with_selected(tmp_path):
    async with in_round(tmp_path, compiled=False, authorities=AUTHORITIES, **SECURE) as round_:
        for index in range(SELECTED):
            await round_.select(f"client{index}")
        yield round_, round_.rounds.collecting._secure.attempt


async def send_keys(round_, attempt, index):
    said = messages.SecureRequest(attempt=attempt.name.attempt, step="keys", content=keys_of(index, attempt.name))
    assert (await round_.handlers.secure_sum(f"client{index}", said)).state == messages.SecureReply.WAIT


async def decline(round_, attempt, index):
    header = messages.UploadHeader(upload_id=b"1", outcome="NOT_ALLOWED", attempt=attempt.name.attempt)
    await round_.send(f"client{index}", header)


@pytest.mark.parametrize("keys", [0, 1, 2])
async def test_a_round_without_keys_enough_is_abandoned_when_the_others_decline(tmp_path, keys):
    async with with_selected(tmp_path) as (round_, attempt):
        for index in range(SELECTED):
            await (send_keys if index < keys else decline)(round_, attempt, index)
        assert await asyncio.wait_for(round_.collecting, 20) is None
        assert attempt.reason == f"no secure sum of {keys} members"


async def test_who_declines_after_its_keys_is_counted_once_and_is_no_member(tmp_path):
    async with with_selected(tmp_path) as (round_, attempt):
        for step, index in ((send_keys, 0), (decline, 0), (send_keys, 1)):
            await step(round_, attempt, index)
        await asyncio.sleep(0.7)
        assert attempt.phase == "advertising"
        await send_keys(round_, attempt, 2)
        assert await asyncio.wait_for(round_.collecting, 20) is None
        assert attempt.reason == "no secure sum of 2 members"


async def test_no_step_waits_for_members_that_decline_after_the_roster_was_made(tmp_path):
    async with with_selected(tmp_path) as (round_, attempt):
        for index in range(SELECTED):
            await send_keys(round_, attempt, index)
        while attempt.phase == "advertising":
            await asyncio.sleep(0.05)
        for index in range(SELECTED):
            await decline(round_, attempt, index)
        assert await asyncio.wait_for(round_.collecting, 20) is None
        assert attempt.reason == "0 members are left, but 3 must be"


@pytest.mark.parametrize("way", ["up", "down"])
async def test_bytes_of_a_secure_sum_are_counted_in_both_directions(tmp_path, monkeypatch, way):
    async with with_selected(tmp_path) as (round_, attempt):
        most = bytes(int({"up": 0.75, "down": 1.1}[way] * round_.handlers._limiter._limits.bytes))
        answered = []
        asked = messages.SecureRequest(attempt=attempt.name.attempt, step="keys", content=most if way == "up" else b"")

        async def answer(*asked):
            answered.append(asked)
            return Reply("ready", most if way == "down" else b"")

        monkeypatch.setattr(round_.rounds, "answer_member", answer)
        assert (await round_.handlers.secure_sum("client0", asked)).state == messages.SecureReply.READY
        with pytest.raises(TooManyCallsError, match="too many bytes"):
            await round_.handlers.secure_sum("client0", asked)
        assert len(answered) == 1, "no answer is made that is not sent"


class Coordinated:
    """A coordinator, an aggregator's calls, and the token of the round."""

    def __init__(self, database):
        self.shared, self.said, self.state = SharedRounds(database), MemberMessages(database), SqlState(database)
        self.state.claim("run")
        self.draining, self.saved, settings = False, 0, small.deployment(**SECURE)
        self.what = dataclasses.replace(small.task(settings), authorities=AUTHORITIES)
        secure = dataclasses.replace(secure_settings(self.what, self.state, None), save=self.save)
        others = {"messages": self.said, "settings": secure, "run": "run", "offer": make_offer(self.what)}
        self.runner = SecureCohortRunner(self.shared, settings, "", lambda: self.draining, **others)

    def save(self, attempt):
        self.saved += 1
        assert self.saved < 20, "the coordinator goes round in circles"

    async def open(self):
        """Open a round, and have all clients selected."""
        plan, params = RoundPlan(0, np.zeros(0, np.int64), 0, 1.0), self.what.model.init(jax.random.key(0))
        self.running = asyncio.create_task(asyncio.to_thread(self.runner.run, params, plan, 0.5))
        while (found := self.shared.current()[0]) is None:
            await asyncio.sleep(0.05)
        self.token = found.token
        for number in self.shared.number_clients([f"client{one}" for one in range(SELECTED)]).values():
            assert self.shared.select(self.token, number, 1).selected

    async def open_until_dealing(self):
        """Open a round, and have the keys of all in its roster."""
        await self.open()
        for number in range(SELECTED):
            self.send_keys(number)
        while self.runner._secure.attempt.phase != "dealing":
            await asyncio.sleep(0.05)

    def send_keys(self, number):
        name = self.runner._secure.attempt.name
        assert self.said.ask(self.token, number, "keys", keys_of(number, name)).state == "wait"

    def decline(self, *numbers):
        self.shared.settle(self.token, dict.fromkeys(numbers, "declined"), "a")

    async def reason(self):
        """Say why the round was abandoned, after telling the coordinator to end."""
        while not self.running.done() and not self.state.attempts(1):
            await asyncio.sleep(0.05)
        self.draining = True
        with pytest.raises(DrainedError):
            await self.running
        return self.state.attempts(1)[0].reason


@pytest.fixture
def coordinated(tmp_path):
    with contextlib.closing(Database(sqlite_url(tmp_path / "state.db"))) as database:
        yield Coordinated(database)


@pytest.mark.parametrize("keys", [0, 1, 2])
async def test_a_coordinator_abandons_a_round_without_keys_enough_and_ends_when_it_is_told_to(coordinated, keys):
    await coordinated.open()
    for number in range(keys):
        coordinated.send_keys(number)
    coordinated.decline(*range(keys, SELECTED))
    assert await coordinated.reason() == f"no secure sum of {keys} members"


async def test_a_coordinator_too_counts_who_declines_after_its_keys_once(coordinated):
    await coordinated.open()
    coordinated.send_keys(0)
    coordinated.decline(0)
    coordinated.send_keys(1)
    await asyncio.sleep(0.5)
    assert coordinated.runner._secure.attempt.phase == "advertising"
    coordinated.send_keys(2)
    assert await coordinated.reason() == "no secure sum of 2 members"


async def test_a_coordinator_does_not_wait_for_members_that_decline_after_the_roster_was_made(coordinated):
    await coordinated.open_until_dealing()
    coordinated.decline(*range(SELECTED))
    assert await asyncio.wait_for(coordinated.reason(), 20) == "0 members are left, but 3 must be"


async def test_a_coordinator_that_is_told_to_end_does_not_wait_for_silent_members(coordinated):
    await coordinated.open_until_dealing()
    coordinated.draining = True
    assert await asyncio.wait_for(coordinated.reason(), 30) == "0 members are left, but 3 must be"
