"""The server's side of every call: it selects clients, sends them the model and collects their reports.

Everything here runs in one event loop; what takes longer than a moment (checking, dequantizing and adding a report, the
database) runs in threads beside it. Nothing that a client does, or leaves out, can keep a round past its deadline.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from fedlm.fl_core.aggregation import CohortAggregate
from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact, ServedChunk
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL, UnknownArtifactError, Upload
from fedlm.fl_core.deployment.protocol.uploads import CountedUpload
from fedlm.fl_core.deployment.server.client_registry import ClientRegistry, ClientsSeen
from fedlm.fl_core.deployment.server.pacing import PaceSteering
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter
from fedlm.fl_core.deployment.server.reports.receiving import Receiver, read_header, refusal
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.server.reports.transfer_turns import Turns
from fedlm.fl_core.deployment.server.round_attempt import DrainedError, Participant, Progress, RoundAttempt, RoundRules
from fedlm.fl_core.deployment.state.state import AttemptRecord, State, StateError
from fedlm.fl_core.round_loop import RoundPlan

_CHECK_INS_SAVED_EVERY = 1.0
_REMEMBERED_ATTEMPTS = 4
_DOWNLOADS, _DOWNLOADS_AT_ONCE = 3, 2
_SAVING_SECONDS, _SAVED_AGAIN_AFTER = 60.0, 1.0
_LONGEST_VERSION = 64


class Collected(NamedTuple):
    """What an attempt that counts gave.

    Attributes:
      aggregate: the sum of the reports.
      selected: clients that were asked.
      steps: local steps that they took.
      bytes_down: sent to clients.
      bytes_up: received from them.
    """

    aggregate: CohortAggregate
    selected: int
    steps: int
    bytes_down: int
    bytes_up: int


class Offer(NamedTuple):
    """What the clients of a run are offered, beside the parameters.

    Attributes:
      program: what they run.
      vocabulary: the tokenizer's JSON.
    """

    program: messages.TrainingProgram
    vocabulary: ServedArtifact


class ClientHandlers:
    """`fedlm.fl_core.deployment.protocol.interface.Handlers` of one run. Make and use it in one event loop.

    Attributes:
      registry: the clients of the run.
    """

    def __init__(
        self,
        state: State,
        registry: ClientRegistry,
        rules: RoundRules,
        offer: Offer,
        receiver: Receiver,
        pacing: PaceSteering,
        limiter: RateLimiter,
    ):
        """Prepare; nothing is selected before `collect`.

        Args:
          state: what must survive.
          registry: the clients that the state knows.
          rules: of rounds.
          offer: what clients run.
          receiver: takes their reports in.
          pacing: when clients come back.
          limiter: keeps any one of them from asking too much.
        """
        self.registry = registry
        self._state, self._rules, self._offer, self._pacing = state, rules, offer, pacing
        self._receiver, self._limiter, self._downloads = receiver, limiter, Turns(_DOWNLOADS_AT_ONCE)
        self._attempt: RoundAttempt | None = None
        self._latest: Progress | None = None
        self._past: OrderedDict[bytes, dict[int, Participant]] = OrderedDict()
        self._saving, self._clock = asyncio.Lock(), asyncio.get_running_loop().time
        self._draining, self._finished = asyncio.Event(), False
        self._next_round = 0

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.check_in`."""
        self._limiter.call(peer)
        if reason := self._ineligible(request):
            warn("check_in_refused", client=peer, reason=reason)
            reply = self._come_back(reason)
            reply.come_back.done = request.protocol != PROTOCOL
            return reply
        number = self.registry.check_in(peer, _cleaned(request.client_version))
        if self._attempt is not None:
            self._attempt.checked_in.add(number)
        attempt, rest = await self._select(number)
        if rest is None:
            reply = self._come_back("it has taken part as often as it may")
            reply.come_back.done = True
            return reply
        if attempt is None:
            return self._come_back("it is resting" if rest else "not needed now", rest)
        now = asyncio.get_running_loop().time()
        return messages.CheckInReply(selected=self._configuration(attempt, number, now), protocols=[PROTOCOL])

    async def _select(self, number: int) -> tuple[RoundAttempt | None, int | None]:
        """Find the attempt that a client takes part in, and the rounds that it has to rest: None where for ever."""
        attempt, now = self._attempt, asyncio.get_running_loop().time()
        rest = self.registry.rounds_to_rest(number, self._next_round, attempt is not None)
        if rest != 0 or attempt is None or not attempt.wants(number, now):
            return None, rest
        attempt.select(number, now)
        return attempt, 0

    def _population(self) -> int:
        """Count the clients that are about."""
        return self.registry.population()

    async def _number_of(self, peer: str) -> int | None:
        """Look up the number of a client that has checked in."""
        return self.registry.number_of(peer)

    async def _takes_part(self, attempt: RoundAttempt, number: int) -> bool:
        """Say whether a client was selected."""
        return number in attempt.participants

    def _ineligible(self, request: messages.CheckInRequest) -> str:
        if request.protocol != PROTOCOL:
            return f"the client speaks version {request.protocol} of the protocol, but the server speaks {PROTOCOL}"
        if request.models and self._offer.program.model not in request.models:
            return f"the client cannot train the model {self._offer.program.model}"
        return ""

    def _come_back(self, reason: str, rest: int = 0) -> messages.CheckInReply:
        wait = self._pacing.wait(self._population(), rest)
        answer = messages.ComeBack(seconds=wait, reason=reason, finished=self._finished)
        return messages.CheckInReply(come_back=answer, protocols=[PROTOCOL])

    def _configuration(self, attempt: RoundAttempt, number: int, now: float) -> messages.RoundConfiguration:
        return messages.RoundConfiguration(
            attempt=attempt.token,
            round_number=attempt.plan.round_number,
            client_index=number,
            seed=attempt.plan.seed,
            learning_rate=attempt.plan.learning_rate,
            program=self._offer.program,
            parameters=attempt.parameters.description,
            vocabulary=self._offer.vocabulary.description,
            seconds=attempt.deadline - now,
        )

    async def download(
        self, peer: str, request: messages.DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.download`."""
        self._limiter.call(peer)
        if request.digest == self._offer.vocabulary.description.digest:
            artifact, send = self._offer.vocabulary, lambda size: None
        else:
            artifact, send = await self._parameters_for(peer, request.digest)
        with self._downloads.transfer() as transfer:
            number = request.first_chunk
            while number < len(artifact.description.chunk_digests):
                await transfer.turn()
                chunk = artifact.chunk(number, bytes_at_once)
                number += chunk.count
                send(chunk.size)
                self._limiter.carry(peer, chunk.size)
                yield chunk
                transfer.moved(chunk.size)

    async def _parameters_for(self, peer: str, digest: bytes) -> tuple[ServedArtifact, Callable[[int], None]]:
        """Find what a client may download, and what notes that it does."""
        number, attempt = await self._number_of(peer), self._attempt
        if (
            number is None
            or attempt is None
            or attempt.parameters.description.digest != digest
            or not await self._takes_part(attempt, number)
        ):
            raise UnknownArtifactError("this model is not offered to this client now; check in again")
        participant = attempt.participants[number]
        most = _DOWNLOADS * attempt.parameters.description.size

        def send(size: int) -> None:
            if participant.bytes_down > most:
                raise UnknownArtifactError("this client has downloaded this model too often")
            participant.bytes_down += size
            attempt.bytes_down += size

        return attempt.parameters, send

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.upload`."""
        self._limiter.call(peer)
        reply = messages.UploadReply()
        counted = CountedUpload(upload, lambda size: self._limiter.carry(peer, size))
        reply.CopyFrom(await self._upload(peer, counted))
        reply.come_back_seconds = self._pacing.wait(self._population())
        if reply.status != messages.UploadReply.ACCEPTED:
            warn("report_refused", client=peer, status=messages.UploadReply.Status.Name(reply.status), why=reply.reason)
        return reply

    async def _upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        header = await read_header(upload)
        if header is None:
            return refusal(messages.UploadReply.INVALID, "an upload begins with a header")
        number, attempt = await self._number_of(peer), self._attempt
        if number is None:
            return refusal(messages.UploadReply.NOT_SELECTED, "this client has not checked in")
        if attempt is None or attempt.token != header.attempt:
            return self._answer_of_the_past(number, header)
        if not await self._takes_part(attempt, number):
            return refusal(messages.UploadReply.NOT_SELECTED, "this client was not selected for this round")
        return await self._receiver.receive(attempt, number, header, upload)

    def _answer_of_the_past(self, number: int, header: messages.UploadHeader) -> messages.UploadReply:
        participants = self._past.get(header.attempt)
        if participants is None:
            return refusal(messages.UploadReply.STALE, "this round, or this attempt at it, is not running")
        participant = participants.get(number)
        if participant is not None and participant.receipt is not None and participant.upload_id == header.upload_id:
            return participant.receipt
        return refusal(messages.UploadReply.LATE, "the round is over")

    async def collect(self, plan: RoundPlan, parameters: ServedArtifact, total: StreamingSum) -> Collected | None:
        """Make one attempt at a round.

        Args:
          plan: of the round; where it names clients, only they may take part, and all of them are waited for.
          parameters: what clients download.
          total: the sum of no report.

        Returns:
          What counts, which is in the state by then; None where the attempt was abandoned.

        Raises:
          DrainedError: the server is going down, and nobody was selected yet.
        """
        loop = asyncio.get_running_loop()
        rules = self._rules.for_cohort(len(plan.clients)) if len(plan.clients) else self._rules
        attempt = RoundAttempt(plan, rules, parameters, total, loop.time())
        self._next_round, self._attempt = plan.round_number, attempt
        event("round_opened", round=plan.round_number, attempt=attempt.token.hex())
        try:
            await self._until_finished(attempt)
        finally:
            self._attempt = None
            await self._close(attempt)
            self._latest = attempt.progress(loop.time())
        seconds = loop.time() - attempt.opened
        self._pacing.round_took(seconds)
        record = _record(attempt, time.time() - seconds, seconds)
        await self._save(attempt, record, loop.time() + _SAVING_SECONDS)
        event(f"round_{record.outcome}", **record._asdict())
        if record.outcome == "abandoned":
            return None
        self.registry.took_part(attempt.accepted, plan.round_number)
        self._next_round = plan.round_number + 1
        return Collected(
            await asyncio.to_thread(total.finish),
            len(attempt.participants),
            attempt.steps,
            attempt.bytes_down,
            attempt.bytes_up,
        )

    async def _until_finished(self, attempt: RoundAttempt) -> None:
        loop = asyncio.get_running_loop()
        while not attempt.finished(loop.time()):
            if self._draining.is_set() and not attempt.participants:
                raise DrainedError
            attempt.changed.clear()
            try:
                async with asyncio.timeout(max(attempt.next_moment(loop.time()), 0)):
                    await attempt.changed.wait()
            except TimeoutError:
                continue

    async def _close(self, attempt: RoundAttempt) -> None:
        attempt.closed = True
        self._past[attempt.token] = attempt.participants
        while len(self._past) > _REMEMBERED_ATTEMPTS:
            self._past.popitem(last=False)
        for participant in attempt.participants.values():
            if participant.receiving is not None:
                participant.receiving.cancel()
        # What is being added now belongs to the sum; what waits for its turn finds the attempt closed.
        await self._receiver.idle()

    async def _save(self, attempt: RoundAttempt, record: AttemptRecord, deadline: float) -> None:
        """Write an attempt and its participants; wait a while for a database that is busy or gone."""
        participants = attempt.accepted if record.outcome == "finished" else []
        while True:
            try:
                async with self._saving:
                    # Who takes part must be in the state before that it took part.
                    await self._save_check_ins()
                    await asyncio.to_thread(self._state.record_attempt, record, participants)
                return
            except StateError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                warn("attempt_not_saved", why=str(error))
                await asyncio.sleep(_SAVED_AGAIN_AFTER)

    async def _save_check_ins(self) -> None:
        seen = self.registry.unsaved()
        try:
            await asyncio.to_thread(self._state.record_check_ins, seen)
        except BaseException:
            self.registry.put_back(seen)
            raise

    async def save_check_ins(self) -> None:
        """Write check-ins to the state now and then, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_INS_SAVED_EVERY)
            try:
                async with self._saving:
                    await self._save_check_ins()
            except StateError as error:
                # They are kept, and written with the next ones.
                warn("check_ins_not_saved", why=str(error))

    def drain(self) -> None:
        """Select nobody for another round; one that is under way goes on to its end."""
        self._draining.set()
        if self._attempt is not None:
            self._attempt.changed.set()

    @property
    def draining(self) -> bool:
        """Whether the server is going down."""
        return self._draining.is_set()

    def progress(self) -> Progress | None:
        """Say how far the attempt is that is open, or was last; from any thread.

        Returns:
          None before the first.
        """
        attempt = self._attempt
        return self._latest if attempt is None else attempt.progress(self._clock())

    def clients_seen(self) -> ClientsSeen:
        """Count the clients that have checked in; from any thread."""
        return self.registry.seen()

    @property
    def finished(self) -> bool:
        """Whether clients are told that the run is over."""
        return self._finished

    def finish(self) -> None:
        """Tell all clients that the run is over."""
        self._finished = True


def _cleaned(version: str) -> str:
    # It goes to a database and to logs, some of which do not take every character.
    return "".join(character for character in version[:_LONGEST_VERSION] if character.isprintable())


def _record(attempt: RoundAttempt, started: float, seconds: float) -> AttemptRecord:
    shortfall = attempt.shortfall()
    return AttemptRecord(
        token=attempt.token.hex(),
        round_number=attempt.plan.round_number,
        outcome="abandoned" if shortfall else "finished",
        reason=shortfall,
        started=started,
        seconds=seconds,
        selected=len(attempt.participants),
        reported=len(attempt.accepted),
        refused=attempt.refused,
        declined=attempt.declined,
        bytes_down=attempt.bytes_down,
        bytes_up=attempt.bytes_up,
    )
