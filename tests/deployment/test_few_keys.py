"""Secure rounds of which few clients have sent keys: they end, in one process and with aggregators."""

import asyncio
import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.secure_aggregation import wire
from fedlm.fedlm_client.secure_aggregation.keys import AttemptName
from fedlm.fl_core.deployment.aggregators.member_messages import MemberMessages
from fedlm.fl_core.deployment.aggregators.secure_runner import SecureCohortRunner
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.server.client_service import secure_settings
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
}
SECURE |= {"cohort_size": SELECTED, "minimum_reports": SELECTED, "reporting_seconds": small.PATIENCE}
AUTHORITIES = (cohorts.authority("ours")[0],)
DECLINED = messages.UploadHeader(upload_id=b"1", outcome="NOT_ALLOWED")


def keys_of(index, name):
    return wire.write_advertisement(cohorts.member(index, name=name).advertise())


@pytest.mark.parametrize("keys", [0, 1, 2])
async def test_a_round_without_keys_enough_is_abandoned_when_the_others_decline(tmp_path, keys):
    async with in_round(tmp_path, compiled=False, authorities=AUTHORITIES, **SECURE) as round_:
        for index in range(SELECTED):
            asked, peer = await round_.select(f"client{index}"), f"client{index}"
            name = AttemptName(asked.run, asked.round_number, asked.attempt, asked.parameters.digest)
            if index < keys:
                said = messages.SecureRequest(attempt=asked.attempt, step="keys", content=keys_of(index, name))
                assert (await round_.handlers.secure_sum(peer, said)).state == messages.SecureReply.WAIT
            else:
                DECLINED.attempt = asked.attempt
                await round_.send(peer, DECLINED)
        assert await asyncio.wait_for(round_.collecting, 20) is None
        assert round_.state.attempts(1)[0].reason == f"no secure sum of {keys} members"


class Coordinated:
    """A coordinator, an aggregator's calls, and the token of the round."""

    def __init__(self, database):
        self.shared, self.said, self.state = SharedRounds(database), MemberMessages(database), SqlState(database)
        self.state.claim("run")
        self.draining, self.saved, settings = False, 0, small.deployment(**SECURE)
        self.what = dataclasses.replace(small.task(settings), authorities=AUTHORITIES)
        secure = dataclasses.replace(secure_settings(self.what, self.state, None), save=self.save)
        others = {"messages": self.said, "settings": secure, "run": "run"}
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

    def send_keys(self, number):
        name = self.runner._secure.attempt.name
        assert self.said.ask(self.token, number, "keys", keys_of(number, name)).state == "wait"

    def decline(self, *numbers):
        self.shared.settle(self.token, dict.fromkeys(numbers, "declined"), "a")


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
    while not coordinated.running.done() and not coordinated.state.attempts(1):
        await asyncio.sleep(0.05)
    coordinated.draining = True
    with pytest.raises(DrainedError):
        await coordinated.running
    assert coordinated.state.attempts(1)[0].reason == f"no secure sum of {keys} members"
