"""One of several processes that clients may talk to: it selects clients for the coordinator's rounds, sends them the
model, and adds up the reports that it receives itself.

Any of them can answer any call of any client, so that they may stand behind one address. See
`fedlm.fl_core.deployment.aggregators.shared_rounds` for what they have in common.
"""

import asyncio
import functools
import math
import secrets
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, Step
from fedlm.fl_core.deployment.aggregators.client_numbers import ClientNumbers
from fedlm.fl_core.deployment.aggregators.masked_part import MaskedLayout, MaskedPart
from fedlm.fl_core.deployment.aggregators.member_messages import MemberMessages
from fedlm.fl_core.deployment.aggregators.shard import Shard
from fedlm.fl_core.deployment.aggregators.shared_records import SharedRound
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.server.client_handlers import CheckedIn
from fedlm.fl_core.deployment.server.client_service import ClientService
from fedlm.fl_core.deployment.server.pacing import spread
from fedlm.fl_core.deployment.server.reports.attempt import Attempt, Participant, RoundCollection
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.state.retrying import with_retries_async
from fedlm.fl_core.deployment.state.state import StateError, UnreachableError
from fedlm.fl_core.errors import ConfigurationError, DiskError
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.rounds.tracing import past, round_trace

_POLL_SECONDS, _BEAT_SECONDS = 0.1, 1.0
_Result = TypeVar("_Result")


class Aggregator:
    """`Rounds` of the coordinator. Make and use it in one event loop.

    Attributes:
      registry: the clients that have called this process.
      collecting: this process's part in the attempt that is open.
      draining: whether the server is going down.
      finished: whether clients are told that the run is over.
    """

    def __init__(self, shared: SharedRounds, service: ClientService, agreement: str, saved_every: int):
        """Prepare; nothing is selected before `follow`.

        Args:
          agreement: digest of the settings that the coordinator must share.
          saved_every: rounds after which they are on disk.
        """
        self._shared, self._service, self.registry = shared, service, service.registry
        self._messages = MemberMessages(service.state.database)
        self._agreement, self._saved_every = agreement, saved_every
        self._numbers = ClientNumbers(shared, service.registry)
        self._name, self._aggregators = secrets.token_hex(8), 1
        # A shard whose reports are not taken any more is kept until its sum is delivered.
        self._shard: Shard | None = None
        self._collecting: Shard | None = None
        self._leaves_at = math.inf
        self.draining = self.finished = False

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: the run is over, or the server is going down and takes no part in a round."""
        return self._shard is None and (self.finished or self.draining)

    def drain(self) -> None:
        """Take part in no other round; from one that is under way part once no client here is at work, or when what it
        is given for that is over."""
        if not self.draining:
            self.draining = True
            self._leaves_at = asyncio.get_running_loop().time() + self._service.rules.drain_seconds

    # What calls of clients ask for.

    @property
    def collecting(self) -> Shard | None:
        return self._collecting

    def recent_clients(self) -> int:
        # Clients are spread over all aggregators.
        return self.registry.recent_clients() * self._aggregators

    async def check_in(self, peer: str, version: str) -> CheckedIn:
        await self._numbers.find(peer)
        number = self.registry.check_in(peer, version)
        shard = self._shard
        takes_part = shard is not None and number in shard.attempt.participants
        if not takes_part and (early := await self._seconds_early(peer, number)):
            return CheckedIn(number, None, seconds=early)
        if shard is None or not await self._wants(shard, number):
            return CheckedIn(number, None)
        if self.draining and number not in shard.attempt.participants:
            return CheckedIn(number, None)
        found = await asyncio.to_thread(self._shared.select, shard.token, number, self._saved_every)
        if found.drawn_later:
            # When the first checked in, and so when the draw is, the coordinator knows.
            window = self._service.rules.window_seconds
            self.ask_back(number, window)
            return CheckedIn(number, None, seconds=spread(window))
        if not found.selected or shard.attempt.closed:
            return CheckedIn(number, None, found.rest)
        shard.attempt.participants.setdefault(number, Participant())
        return CheckedIn(number, shard)

    async def _wants(self, shard: Shard, number: int) -> bool:
        if shard.wants(number, asyncio.get_running_loop().time()):
            return True
        if shard.attempt.closed or shard.selecting or number in shard.attempt.participants:
            return False
        # Who was drawn is told so at the next check-in, when the round may be full.
        return await asyncio.to_thread(self._shared.is_awaited, shard.token, number)

    async def _seconds_early(self, peer: str, number: int) -> float:
        if here := self.registry.seconds_early(number):
            return here
        # Other processes may have asked it back.
        return (await asyncio.to_thread(self._shared.seconds_early, [peer])).get(peer, 0.0)

    def ask_back(self, number: int, seconds: float) -> None:
        self.registry.ask_back(number, seconds)

    async def number_of(self, peer: str) -> int | None:
        try:
            await self._numbers.find(peer)
        except StateError:
            return None
        return self.registry.number_of(peer)

    async def takes_part(self, collection: RoundCollection, number: int) -> bool:
        attempt = collection.attempt
        if number in attempt.participants:
            return True
        try:
            selected = await asyncio.to_thread(self._shared.takes_part, attempt.token.hex(), number)
        except StateError:
            return False
        if selected:
            # Another process has selected it, which may be gone.
            attempt.participants.setdefault(number, Participant())
        return selected

    async def answer_member(self, number: int, peer: str, request: messages.SecureRequest) -> Reply:
        step: Step = request.step  # type: ignore[assignment]
        ask = functools.partial(self._messages.ask, request.attempt.hex(), number, step, request.content)
        try:
            return await asyncio.to_thread(ask)
        except StateError as error:
            warn("member_not_answered", why=str(error))
            return Reply("wait")

    # Following the coordinator.

    async def follow(self) -> None:
        """Take part in the rounds that the coordinator opens, until cancelled."""
        await _for_ever(lambda: self._shared.join(self._name))
        event("aggregator_joined", aggregator=self._name)
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                try:
                    await self._look()
                except StateError as error:
                    if not isinstance(error, UnreachableError):
                        warn("state_not_reached", why=str(error))
                    if asyncio.get_running_loop().time() > self._leaves_at:
                        # Its reports count as lost.
                        await self._drop_shard()
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            if not await _for_ever(lambda: self._shared.beat(self._name)):
                # Whatever it had added counts as lost; it begins again as another.
                event("aggregator_was_lost", aggregator=self._name)
                self._name = secrets.token_hex(8)
                await self._drop_shard()
                await _for_ever(lambda: self._shared.join(self._name))
            await asyncio.sleep(_BEAT_SECONDS)

    async def _look(self) -> None:
        found, aggregators, over = await asyncio.to_thread(self._shared.current)
        self._aggregators = max(1, aggregators)
        self.finished = self.finished or over
        if self._shard is not None and (found is None or found.token != self._shard.token):
            await self._drop_shard()
        if found is None:
            return
        shard = self._shard
        if shard is None:
            await self._take_part(found)
            return
        shard.selecting = found.phase in ("gathering", "selecting")
        shard.attempt.deadline = asyncio.get_running_loop().time() + found.seconds_left
        await shard.settle()
        if found.phase == "closed":
            await self._deliver(shard)
        elif self._leaves(shard):
            await (self._deliver(shard, leaving=True) if shard.added else self._drop_shard())

    def _leaves(self, shard: Shard) -> bool:
        """Say whether this process is going down and no client that it knows of is at work in a round."""
        if not self.draining:
            return False
        at_work = any(one.receipt is None for one in shard.attempt.participants.values())
        return not at_work or asyncio.get_running_loop().time() > self._leaves_at

    async def _take_part(self, found: SharedRound) -> None:
        token = bytes.fromhex(found.token)
        if found.phase == "closed" or token in self._service.receiver.past or self.draining:
            return
        if found.agreement != self._agreement:
            raise ConfigurationError(
                "the coordinator has other settings than this aggregator, or does not speak version "
                f"{PROTOCOL} of the protocol: give all of them the same configuration and software"
            )
        plan = RoundPlan(found.round_number, np.zeros(0, np.int64), found.seed, found.learning_rate)
        try:
            parameters = await asyncio.to_thread(self._parameters, found.parameters)
        except DiskError as error:
            # Others may take part meanwhile; this one does once there is room.
            warn("no_room_for_model", why=str(error))
            await asyncio.sleep(_BEAT_SECONDS)
            return
        total = await asyncio.to_thread(self._sum, plan, found)
        run = await asyncio.to_thread(self._service.state.run)
        now = asyncio.get_running_loop().time()
        attempt = Attempt(plan, parameters, total, now, now + found.seconds_left, token, run)
        self._shard = self._collecting = Shard(attempt, self._shared, self._name)
        event("shard_opened", round=found.round_number, attempt=found.token, aggregator=self._name)

    def _parameters(self, digest: str) -> ServedArtifact:
        return self._service.downloads.offer([self._shared.fetch(digest)])

    def _sum(self, plan: RoundPlan, found: SharedRound) -> StreamingSum:
        if found.masks is not None:
            return MaskedPart(
                messages.SecureSum.FromString(found.masks), MaskedLayout(found.masked_length, found.masked_bits)
            )
        self._service.sums.compile(plan, found.clip_norm)
        return self._service.sums.new(plan, found.clip_norm)

    async def _deliver(self, shard: Shard, leaving: bool = False) -> None:
        self._collecting = None
        await self._service.receiver.close(shard.attempt)
        await shard.settle()
        taken = await asyncio.to_thread(shard.hand_over, leaving)
        self._shard = None
        attempt, ended = shard.attempt, asyncio.get_running_loop().time()
        self._service.pacing.round_took(ended - attempt.opened)
        shard.attempt.parameters.withdraw()
        event("shard_delivered", attempt=shard.token, reports=len(shard.added), taken=taken)
        trace = round_trace(attempt.run, attempt.plan.round_number)
        past("shard", attempt.opened, ended, of=(trace, shard.token), reports=len(shard.added))

    async def _drop_shard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is None:
            return
        if self._collecting is shard:
            self._collecting = None
        await self._service.receiver.close(shard.attempt)
        shard.attempt.parameters.withdraw()
        event("shard_dropped", attempt=shard.token, reports=len(shard.added))


async def _for_ever(work: Callable[[], _Result]) -> _Result:
    """Do something with the database, until it can be done."""
    return await with_retries_async(lambda: asyncio.to_thread(work), math.inf)
