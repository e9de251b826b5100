"""One of several processes that clients may talk to: it selects clients for the coordinator's rounds, sends them the
model, and adds up the reports that it receives itself.

Any of them can answer any call of any client, so that they may stand behind one address. See
`fedlm.fl_core.deployment.aggregators.shared_rounds` for what they have in common.
"""

import asyncio
import dataclasses
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedlm.fl_core.deployment.aggregators.partial_sums import pack_aggregate
from fedlm.fl_core.deployment.aggregators.shared_records import PartialSum, SharedRound
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.server.round_attempt import Participant, RoundAttempt
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.state.state import StateError
from fedlm.fl_core.errors import ConfigurationError, DiskError
from fedlm.fl_core.round_loop import RoundPlan

_POLL_SECONDS, _BEAT_SECONDS = 0.1, 1.0
_Reply = messages.UploadReply

NewSum = Callable[[RoundPlan, float | None], StreamingSum]
"""From the plan of a round, and its clip norm, to the sum of no report."""


@dataclass
class Shard(RoundAttempt):
    """This process's part in an attempt.

    Attributes:
      shared: where the other processes are met.
      aggregator: the name of this one.
      selecting: whether clients are selected.
      ends: when reports are refused, by the loop's clock.
      added: clients whose reports are in the sum, or being added.
      settled: what became of other clients, until the database knows.
    """

    shared: SharedRounds = field(kw_only=True)
    aggregator: str = field(kw_only=True)
    selecting: bool = True
    ends: float = 0.0
    added: set[int] = field(default_factory=set)
    settled: dict[int, Literal["declined", "refused"]] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        """See `RoundAttempt.deadline`."""
        return self.ends

    def wants(self, client: int, now: float) -> bool:
        """See `RoundAttempt.wants`; the database has the last word."""
        if client in self.participants:
            return not self.closed and self.participants[client].receipt is None
        return not self.closed and self.selecting and now < self.ends

    def claim(self, client: int, upload_id: bytes) -> messages.UploadReply | None:
        """See `RoundAttempt.claim`."""
        if self.closed:
            return _Reply(status=_Reply.LATE, reason="the round is over")
        try:
            claim = self.shared.claim(self.token.hex(), client, self.aggregator, upload_id)
        except StateError as error:
            warn("report_not_claimed", why=str(error))
            return _Reply(status=_Reply.DAMAGED, reason="the server cannot take reports now; send it again later")
        if claim == "elsewhere":
            return _Reply(status=_Reply.DAMAGED, reason="it is not known yet whether this counts; send it again later")
        if claim == "answered":
            return _Reply(status=_Reply.INVALID, reason="this client has answered in this round already")
        if claim == "late":
            return _Reply(status=_Reply.LATE, reason="the round has all the reports that it wanted")
        if client in self.added:
            return _Reply(status=_Reply.ACCEPTED)
        # An earlier claim of the same upload may have been committed although the connection broke.
        self.added.add(client)
        self.taken += 1
        return None

    def give_back(self, client: int) -> None:
        """See `RoundAttempt.give_back`."""
        super().give_back(client)
        self.added.discard(client)
        try:
            self.shared.settle(self.token.hex(), {client: "selected"}, self.aggregator)
        except StateError as error:
            # It counts as lost when the sum is handed over.
            warn("report_not_given_back", why=str(error))

    def answer(self, client: int, upload_id: bytes, receipt: messages.UploadReply) -> None:
        """See `RoundAttempt.answer`."""
        super().answer(client, upload_id, receipt)
        if client not in self.added:
            self.settled[client] = "declined" if receipt.status == _Reply.ACCEPTED else "refused"


class Aggregator(ClientHandlers):
    """`fedlm.fl_core.deployment.protocol.interface.Handlers` that share their rounds with other processes."""

    def __init__(
        self,
        shared: SharedRounds,
        agreement: str,
        new_sum: NewSum,
        deployment: Deployment,
        folder: Path,
        **others: Any,
    ):
        """Prepare; nothing is selected before `follow`.

        Args:
          shared: where the coordinator is met.
          agreement: digest of the settings that the coordinator must share.
          new_sum: see `NewSum`.
          deployment: the settings.
          folder: where the model is while it is downloaded.
          **others: see `ClientHandlers`.
        """
        super().__init__(**others)
        self._shared, self._agreement, self._new_sum = shared, agreement, new_sum
        self._encoding, self._chunk_bytes = deployment.download_encoding, deployment.chunk_bytes
        self._folder = folder
        self._name, self._saved_every = secrets.token_hex(8), deployment.saved_every
        self._compiled = False
        self._shard: Shard | None = None
        self._aggregators = 1
        self._unnumbered: dict[str, asyncio.Future[None]] = {}
        self._numbering: asyncio.Task | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: the run is over, or the server is going down and takes no part in a round."""
        return self._shard is None and (self._finished or self.draining)

    # What is asked of the database rather than of this process's memory.

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.check_in`."""
        try:
            await self._make_known(peer)
            return await super().check_in(peer, request)
        except StateError as error:
            warn("check_in_failed", client=peer, why=str(error))
            return self._come_back("the server cannot select clients now")

    async def _make_known(self, peer: str) -> None:
        """Have the client's number in the registry. Clients that come together are numbered together."""
        if self.registry.number_of(peer) is not None:
            return
        if peer not in self._unnumbered:
            self._unnumbered[peer] = asyncio.get_running_loop().create_future()
        if self._numbering is None or self._numbering.done():
            self._numbering = asyncio.create_task(self._number_them())
        await asyncio.shield(self._unnumbered[peer])

    async def _number_them(self) -> None:
        while waiting := self._unnumbered:
            self._unnumbered = {}
            try:
                numbers = await asyncio.to_thread(self._shared.number_clients, list(waiting))
            except StateError as error:
                for future in waiting.values():
                    future.set_exception(error)
                continue
            for identity, future in waiting.items():
                self.registry.add(numbers[identity], identity)
                future.set_result(None)

    async def _select(self, number: int) -> tuple[RoundAttempt | None, int | None]:
        shard, now = self._shard, asyncio.get_running_loop().time()
        if shard is None or not shard.wants(number, now) or (self.draining and number not in shard.participants):
            return None, 0
        selected, rest = await asyncio.to_thread(self._shared.select, shard.token.hex(), number, self._saved_every)
        if not selected or shard.closed:
            return None, rest
        shard.participants.setdefault(number, Participant())
        return shard, 0

    async def _number_of(self, peer: str) -> int | None:
        try:
            await self._make_known(peer)
        except StateError:
            return None
        return self.registry.number_of(peer)

    async def _takes_part(self, attempt: RoundAttempt, number: int) -> bool:
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

    def _population(self) -> int:
        # Clients are spread over all aggregators.
        return self.registry.population() * self._aggregators

    # Following the coordinator.

    async def follow(self) -> None:
        """Take part in the rounds that the coordinator opens, until cancelled."""
        await self._until_done(self._shared.join, self._name)
        event("aggregator_joined", aggregator=self._name)
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                try:
                    await self._look()
                except StateError as error:
                    warn("state_not_reached", why=str(error))
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            beating.cancel()

    async def _until_done(self, work: Callable[..., Any], *arguments: Any) -> Any:
        while True:
            try:
                return await asyncio.to_thread(work, *arguments)
            except StateError as error:
                warn("state_not_reached", why=str(error))
                await asyncio.sleep(_BEAT_SECONDS)

    async def _beat(self) -> None:
        while True:
            if not await self._until_done(self._shared.beat, self._name):
                # Whatever it had added counts as lost; it begins again as another.
                event("aggregator_was_lost", aggregator=self._name)
                self._name = secrets.token_hex(8)
                shard, self._shard = self._shard, None
                if shard is not None:
                    await self._drop(shard)
                await self._until_done(self._shared.join, self._name)
            await asyncio.sleep(_BEAT_SECONDS)

    async def _look(self) -> None:
        found, self._aggregators, over = await asyncio.to_thread(self._shared.current)
        self._aggregators = max(1, self._aggregators)
        if over:
            self.finish()
        shard = self._shard
        if shard is not None and (found is None or bytes.fromhex(found.token) != shard.token):
            self._shard = None
            await self._drop(shard)
            shard = None
        if found is None:
            return
        if shard is None:
            await self._take_part(found)
            return
        shard.selecting = found.phase == "selecting"
        shard.ends = asyncio.get_running_loop().time() + found.seconds_left
        await self._settle(shard)
        if found.phase == "closed":
            await self._deliver(shard)

    async def _take_part(self, found: SharedRound) -> None:
        token = bytes.fromhex(found.token)
        if found.phase == "closed" or token in self._past or self.draining:
            return
        if found.agreement != self._agreement:
            raise ConfigurationError(
                "the coordinator runs with other settings than this aggregator, or does not speak version "
                f"{PROTOCOL} of the protocol as it does: give all of them the same configuration and software"
            )
        plan = RoundPlan(found.round_number, np.zeros(0, np.int64), found.seed, found.learning_rate)
        try:
            parameters = await asyncio.to_thread(self._parameters, found.parameters)
        except DiskError as error:
            # Others may take part meanwhile; this one does once there is room.
            warn("no_room_for_model", why=str(error))
            await asyncio.sleep(_BEAT_SECONDS)
            return
        total = await asyncio.to_thread(self._sum, plan, found.clip_norm)
        now, rules = asyncio.get_running_loop().time(), dataclasses.replace(self._rules, goal=found.goal)
        self._shard = Shard(plan, rules, parameters, total, now, token, shared=self._shared, aggregator=self._name)
        self._shard.ends, self._attempt = now + found.seconds_left, self._shard
        event("shard_opened", round=found.round_number, attempt=found.token, aggregator=self._name)

    def _parameters(self, digest: str) -> ServedArtifact:
        return ServedArtifact([self._shared.fetch(digest)], self._encoding, self._chunk_bytes, self._folder)

    def _sum(self, plan: RoundPlan, clip_norm: float | None) -> StreamingSum:
        if not self._compiled:
            self._new_sum(plan, clip_norm).compile()
            self._compiled = True
        return self._new_sum(plan, clip_norm)

    async def _settle(self, shard: Shard) -> None:
        settled, shard.settled = shard.settled, {}
        if not settled:
            return
        try:
            await asyncio.to_thread(self._shared.settle, shard.token.hex(), settled, shard.aggregator)
        except StateError:
            shard.settled = settled | shard.settled
            raise

    async def _deliver(self, shard: Shard) -> None:
        self._attempt = None
        await self._close(shard)
        await self._settle(shard)
        taken = await asyncio.to_thread(self._hand_over, shard)
        self._shard = None
        self._pacing.round_took(asyncio.get_running_loop().time() - shard.opened)
        shard.parameters.withdraw()
        event("shard_delivered", attempt=shard.token.hex(), reports=len(shard.added), taken=taken)

    def _hand_over(self, shard: Shard) -> bool:
        partial = PartialSum(
            token=shard.token.hex(),
            aggregator=shard.aggregator,
            content=self._shared.put(pack_aggregate(shard.sum.aggregate)),
            reports=len(shard.added),
            steps=shard.steps,
            bytes_down=shard.bytes_down,
            bytes_up=shard.bytes_up,
        )
        return self._shared.deliver(partial, sorted(shard.added))

    async def _drop(self, shard: Shard) -> None:
        if self._attempt is shard:
            self._attempt = None
        await self._close(shard)
        shard.parameters.withdraw()
        event("shard_dropped", attempt=shard.token.hex(), reports=len(shard.added))
