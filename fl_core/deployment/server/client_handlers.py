"""Answers every call of clients, in each process that has any: a check-in, a download, a report.

Everything here runs in one event loop; what takes longer than a moment (checking, dequantizing and adding a report, the
database) runs in threads beside it. Nothing that a client does, or leaves out, can keep a round past its deadline.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Protocol

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, UnknownArtifactError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply
from fedlm.fl_core.client_algorithms.registry import SGD
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.plans.plan_offers import OfferedPlan, PlanOffer
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact, ServedChunk
from fedlm.fl_core.deployment.protocol.interface import CountedUpload, Upload
from fedlm.fl_core.deployment.protocol.training_program import algorithm_name
from fedlm.fl_core.deployment.server.pacing import PaceSteering
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter
from fedlm.fl_core.deployment.server.reports.attempt import Attempt, RoundCollection
from fedlm.fl_core.deployment.server.reports.receiving import Receiver, read_header, refusal
from fedlm.fl_core.deployment.server.reports.transfer_turns import Turns
from fedlm.fl_core.deployment.state.state import StateError, UnreachableError
from fedlm.fl_core.rounds.round_loop import RoundPlan

_DOWNLOADS, _DOWNLOADS_AT_ONCE = 3, 2
_LONGEST_VERSION = 64
_SECURE_STEPS = ("keys", "shares", "survivors", "agree", "reveal", "refuse")
_PLAN_SECONDS = 2.0
NO_SUM = Reply("over", reason="this sum is over, or of others")


class CheckedIn(NamedTuple):
    """What a check-in came to."""

    number: int  # of the client in this run
    selected_for: RoundCollection | None  # the round that it takes part in; None where it is not needed now
    rest: int | None = 0  # rounds in which it may not take part; None where it never may again
    seconds: float | None = None  # when to come back, where that is known already


class Rounds(Protocol):
    """The rounds that clients take part in, which this process has alone or shares with others."""

    @property
    def collecting(self) -> RoundCollection | None:
        """The round whose clients are served now."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        ...

    def recent_clients(self) -> int:
        """Count the clients that have checked in within the last day, or estimate it."""
        ...

    async def check_in(self, peer: str, version: str) -> CheckedIn:
        """Note a client, and select it where it is needed; raises `StateError` where that cannot be found out."""
        ...

    def ask_back(self, number: int, seconds: float) -> None:
        """Note that a client is asked to come back after so many seconds, and is not needed before."""
        ...

    async def number_of(self, peer: str) -> int | None:
        """Look up the number of a client that has checked in."""
        ...

    async def takes_part(self, collection: RoundCollection, number: int) -> bool:
        """Say whether a client was selected; it is in `collection.attempt.participants` then."""
        ...

    async def answer_member(self, number: int, peer: str, request: messages.SecureRequest) -> Reply:
        """Answer a client in a secure sum."""
        ...


class Offer(NamedTuple):
    """What the clients of a run are offered, beside the parameters."""

    program: messages.TrainingProgram
    vocabulary: ServedArtifact
    population: str
    participation: messages.ParticipationPlan | None  # None where nothing is promised
    plan: PlanOffer | None = None  # for clients that have no models; None where none is made
    masked: bool = False  # whether the server sees sums alone

    def request_of(self, attempt: Attempt) -> messages.RoundConfiguration:
        """Write what all clients of an attempt are asked alike."""
        description, told = attempt.parameters.description, attempt.sum.told
        return self.request(attempt.plan, description, attempt=attempt.token, run=attempt.run, secure_sum=told)

    def request(
        self,
        plan: RoundPlan,
        parameters: messages.Artifact,
        *,
        attempt: bytes,
        run: str,
        secure_sum: messages.SecureSum | None,
    ) -> messages.RoundConfiguration:
        """Write the same of an attempt by its name, where another process serves its clients."""
        return messages.RoundConfiguration(
            secure_sum=secure_sum,
            attempt=attempt,
            round_number=plan.round_number,
            seed=plan.seed,
            learning_rate=plan.learning_rate,
            program=self.program,
            parameters=parameters,
            vocabulary=self.vocabulary.description,
            population=self.population,
            participation=self.participation,
            run=run,
        )


class ClientHandlers:
    """`fedlm.fl_core.deployment.protocol.interface.RunHandlers` of one run. Make and use it in one event loop."""

    def __init__(self, rounds: Rounds, offer: Offer, receiver: Receiver, *, pacing: PaceSteering, limiter: RateLimiter):
        """Put together what answers: `limiter` keeps any one client from asking too much, `pacing` spreads them."""
        self.rounds, self._offer, self._receiver = rounds, offer, receiver
        self._pacing, self._limiter, self._downloads = pacing, limiter, Turns(_DOWNLOADS_AT_ONCE)

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        self._limiter.call(peer)
        if why := self._refusal(request):
            raise RefusedError(why)
        if (model := self._offer.program.model) not in (request.models or (model,)) and not request.needs_plan:
            # The next run at this address may have one of those.
            why = f"the client cannot train the model {model}"
            warn("check_in_refused", client=peer, reason=why)
            return self._come_back(why)
        plan = self._plan(request)
        if plan is None and request.needs_plan:
            return self._come_back("its plan is being made", seconds=_PLAN_SECONDS)
        try:
            checked_in = await self.rounds.check_in(peer, _cleaned(request.client_version))
        except StateError as error:
            if not isinstance(error, UnreachableError):
                warn("check_in_failed", client=peer, why=str(error))
            return self._come_back("the server cannot select clients now")
        if checked_in.rest is None:
            reply = self._come_back("it has taken part as often as it may")
            reply.come_back.done = True
            return reply
        if checked_in.selected_for is None:
            if checked_in.seconds is not None:
                return self._come_back("the round has not chosen its clients yet", seconds=checked_in.seconds)
            if checked_in.rest:
                reply = self._come_back("it is resting", checked_in.rest)
            else:
                reply = self._come_back("not needed now", seconds=self._pacing.stand_by())
            self.rounds.ask_back(checked_in.number, reply.come_back.seconds)
            return reply
        configuration = self._configuration(checked_in.selected_for.attempt, checked_in.number)
        if plan is not None:
            configuration.plan.CopyFrom(plan.message)
        return messages.CheckInReply(selected=configuration, protocols=[PROTOCOL])

    def _refusal(self, request: messages.CheckInRequest) -> str:
        """Say why a client may not take part before it is updated, by what it says of its software; empty where it
        may."""
        if request.protocol != PROTOCOL:
            speaks = f"the client speaks version {request.protocol} of the protocol"
            return f"{speaks}, but the server speaks {PROTOCOL}"
        if request.populations and self._offer.population not in request.populations:
            return (
                f"the run is of the population {self._offer.population!r}, but the client of "
                f"{', '.join(map(repr, request.populations))}; if its owner agrees, start it with --accept-plan"
            )
        if self._offer.masked and not request.secure_sums:
            return "the client does not mask its update, which this run asks for; start it with --secure-sums"
        if not self._offer.masked and request.secure_sums:
            return "the client takes part in secure sums alone, and this run has none; start it without --secure-sums"
        if request.needs_plan or self._has_algorithm(request):
            return ""
        name = algorithm_name(self._offer.program)
        return f"the client does not have the client algorithm {name}, which this run trains with"

    def _plan(self, request: messages.CheckInRequest) -> OfferedPlan | None:
        """Find the plan for a client that has no models; None where it needs none, or waits for it. Raises RefusedError
        where there will be none."""
        if not request.needs_plan:
            return None
        if self._offer.plan is None:
            raise RefusedError("the server has no key for plans (`fedlm keys plan`), so it makes none")
        plan = self._offer.plan.offer()
        if isinstance(plan, str):
            raise RefusedError(plan)
        return plan

    def _has_algorithm(self, request: messages.CheckInRequest) -> bool:
        # Clients that name none know of no other than SGD.
        return algorithm_name(self._offer.program) in (request.algorithms or (SGD,))

    def _come_back(self, reason: str, rest: int = 0, seconds: float | None = None) -> messages.CheckInReply:
        wait = self._pacing.wait(self.rounds.recent_clients(), rest) if seconds is None else seconds
        come_back = messages.ComeBack(seconds=wait, reason=reason, finished=self.rounds.finished)
        return messages.CheckInReply(come_back=come_back, protocols=[PROTOCOL])

    def _configuration(self, attempt: Attempt, number: int) -> messages.RoundConfiguration:
        asked = self._offer.request_of(attempt)
        asked.client_index = number
        asked.seconds = attempt.deadline - asyncio.get_running_loop().time()
        return asked

    async def download(
        self, peer: str, request: DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        self._limiter.call(peer)
        if request.digest == self._offer.vocabulary.description.digest:
            artifact, send = self._offer.vocabulary, lambda size: None
        elif self._offer.plan is not None and (part := self._offer.plan.find(request.digest)) is not None:
            artifact, send = part, lambda size: None
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
        number, collection = await self.rounds.number_of(peer), self.rounds.collecting
        if (
            number is None
            or collection is None
            or collection.attempt.parameters.description.digest != digest
            or not await self.rounds.takes_part(collection, number)
        ):
            raise UnknownArtifactError("this model is not offered to this client now; check in again")
        attempt = collection.attempt
        participant, most = attempt.participants[number], _DOWNLOADS * attempt.parameters.description.size

        def send(size: int) -> None:
            if participant.bytes_down > most:
                raise UnknownArtifactError("this client has downloaded this model too often")
            participant.bytes_down += size
            attempt.bytes_down += size

        return attempt.parameters, send

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        self._limiter.call(peer)
        reply = messages.UploadReply()
        counted = CountedUpload(upload, lambda size: self._limiter.carry(peer, size))
        reply.CopyFrom(await self._upload(peer, counted))
        # Once the round is over it rests like everybody who was drawn with it, which is no shorter.
        reply.come_back_seconds = self._pacing.least_wait(self.rounds.recent_clients())
        if reply.status == messages.UploadReply.ACCEPTED and (number := await self.rounds.number_of(peer)) is not None:
            self.rounds.ask_back(number, reply.come_back_seconds)
        if reply.status != messages.UploadReply.ACCEPTED:
            warn("report_refused", client=peer, status=messages.UploadReply.Status.Name(reply.status), why=reply.reason)
        return reply

    async def secure_sum(self, peer: str, request: messages.SecureRequest) -> messages.SecureReply:
        self._limiter.call(peer)
        self._limiter.carry(peer, len(request.content))
        number, reply = await self.rounds.number_of(peer), NO_SUM
        if number is not None and request.step in _SECURE_STEPS:
            reply = await self.rounds.answer_member(number, peer, request)
        self._limiter.owe(peer, len(reply.content))
        return messages.SecureReply(
            state=messages.SecureReply.State.Value(reply.state.upper()),
            content=reply.content,
            reason=reply.reason,
            seconds=self._pacing.member_wait(),
        )

    async def _upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        header = await read_header(upload)
        if header is None:
            return refusal(messages.UploadReply.INVALID, "an upload begins with a header")
        number, collection = await self.rounds.number_of(peer), self.rounds.collecting
        if number is None:
            return refusal(messages.UploadReply.NOT_SELECTED, "this client has not checked in")
        if collection is None or collection.attempt.token != header.attempt:
            return self._receiver.answer_of_the_past(number, header)
        if not await self.rounds.takes_part(collection, number):
            return refusal(messages.UploadReply.NOT_SELECTED, "this client was not selected for this round")
        return await self._receiver.receive(collection, number, header, upload)


def _cleaned(version: str) -> str:
    # It goes to a database and to logs, some of which do not take every character.
    return "".join(character for character in version[:_LONGEST_VERSION] if character.isprintable())
