"""Answers clients of a server that holds several runs: with one that is trained now, or when to come back.

Each population has one run at a time. A client that belongs to several is asked for one run at a time too: while it
waits for a draw, or works for a round, no other run is asked whether it wants it.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, UnknownArtifactError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.event_log import of_run, warn
from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk
from fedlm.fl_core.deployment.protocol.errors import TooManyCallsError
from fedlm.fl_core.deployment.protocol.interface import RunHandlers, Upload
from fedlm.fl_core.deployment.runs.population_settings import POPULATION_DEFAULTS
from fedlm.fl_core.deployment.server.pacing import spread
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter, RateLimits
from fedlm.fl_core.deployment.server.reports.receiving import refusal

_BETWEEN_RUNS_SECONDS, _NO_MORE_SECONDS = 5.0, 60.0
_randomness = random.SystemRandom()


class AnsweringRun(NamedTuple):
    """A run that is trained now, as clients have to do with it."""

    name: str
    population: str
    handlers: RunHandlers
    keeps: Callable[[str], bool]  # says whether a client waits for its draw, or works for its round


class CurrentRuns:
    """The `RunHandlers` of all runs that are trained now, whose events name the run. Used in one event loop.

    Attributes:
      queued: populations of which a run is trained, or will be soon; None where nobody has looked.
      promised: populations to which something was promised, the first one first; empty where nothing was. A client that
        names none belongs to the first.
      first: the population of such a client where nothing was promised: that of the server's first run.
    """

    def __init__(self) -> None:
        self.queued: frozenset[str] | None = None
        self.promised: tuple[str, ...] = ()
        self.first = POPULATION_DEFAULTS["population"]
        self._runs: dict[str, AnsweringRun] = {}
        # The run that a client has, or had last, to do with.
        self._latest: dict[str, AnsweringRun] = {}
        # One check-in of a client at a time: two at once would each find that no run has it.
        self._checking_in: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._limiter = RateLimiter(RateLimits.for_rounds(0, _BETWEEN_RUNS_SECONDS))

    def begin(self, run: AnsweringRun) -> None:
        """Answer for a run from here on, as the one of its population."""
        self._runs[run.population] = run

    def end(self, population: str) -> None:
        """Answer for no run of a population from here on."""
        ended = self._runs.pop(population, None)
        self._latest = {peer: run for peer, run in self._latest.items() if run is not ended}

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        async with self._checking_in.setdefault(peer, asyncio.Lock()):
            return await self._choose(peer, request)

    async def _choose(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        """Let the run that has a client answer it, or the first one that wants it."""
        belongs, asked = self._belongs(request), self._latest.get(peer)
        runs = [run for population, run in self._runs.items() if population in belongs]
        if asked in runs and asked.keeps(peer):
            runs = [asked]
        _randomness.shuffle(runs)
        if not runs:
            self._limiter.call(peer)
            return _come_back("no run is trained now", self._seconds(belongs))
        replies, refused = [], None
        for run in runs:
            try:
                reply = await _check_in(run, peer, request)
            except TooManyCallsError as error:
                # It may have asked as often as another run lets it.
                refused = error
                continue
            if reply.WhichOneof("answer") == "selected" or run.keeps(peer):
                self._latest[peer] = run
                return reply
            replies.append(reply)
        if refused is not None and not replies:
            raise refused
        return min(replies, key=lambda reply: reply.come_back.seconds)

    def _belongs(self, request: messages.CheckInRequest) -> Collection[str]:
        """Name the populations of a client. Raises RefusedError where the server has none of them."""
        named = frozenset(request.populations)
        if named and self.promised and named.isdisjoint(self.promised):
            raise RefusedError(_other_people(sorted(named), self.promised))
        return named or self.promised[:1] or (self.first,)

    def _seconds(self, belongs: Collection[str] | None) -> float:
        soon = self.queued is None or (self.queued if belongs is None else self.queued.intersection(belongs))
        return _BETWEEN_RUNS_SECONDS if soon else _NO_MORE_SECONDS

    @contextlib.contextmanager
    def _run_of(self, peer: str) -> Iterator[RunHandlers | None]:
        """Give who answers a call of a client."""
        if (run := self._found(peer)) is None:
            yield None
            return
        with of_run(run.name):
            yield run.handlers

    def _found(self, peer: str) -> AnsweringRun | None:
        """Find the run that a client's call is for; where there is none, the call is counted here."""
        run = self._latest.get(peer) or next(iter(self._runs.values()), None)
        if run is None:
            self._limiter.call(peer)
        return run

    async def download(
        self, peer: str, request: DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        if (run := self._found(peer)) is None:
            raise UnknownArtifactError("no run is trained now; check in again")
        async with contextlib.aclosing(run.handlers.download(peer, request, bytes_at_once)) as chunks:
            async for chunk in _named(run.name, chunks):
                yield chunk

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        with self._run_of(peer) as handlers:
            if handlers is None:
                reply = refusal(messages.UploadReply.STALE, "no run is trained now")
                reply.come_back_seconds = spread(self._seconds(None))
                return reply
            return await handlers.upload(peer, upload)

    async def secure_sum(self, peer: str, request: messages.SecureRequest) -> messages.SecureReply:
        with self._run_of(peer) as handlers:
            if handlers is None:
                return messages.SecureReply(state=messages.SecureReply.OVER, reason="no run is trained now")
            return await handlers.secure_sum(peer, request)


async def _check_in(run: AnsweringRun, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
    with of_run(run.name):
        try:
            reply = await run.handlers.check_in(peer, request)
        except RefusedError as error:
            if request.protocol != PROTOCOL:
                raise
            # The next run may be one that it can train.
            warn("check_in_refused", client=peer, reason=str(error))
            return _come_back(str(error), _NO_MORE_SECONDS)
    if reply.come_back.done:
        return _come_back(reply.come_back.reason, _NO_MORE_SECONDS)
    return reply


async def _named(name: str, chunks: AsyncGenerator[ServedChunk, None]) -> AsyncIterator[ServedChunk]:
    # Step by step: who takes a chunk goes on in the same context.
    while True:
        with of_run(name):
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
        yield chunk


def _other_people(named: Sequence[str], promised: Sequence[str]) -> str:
    belongs, there = (", ".join(map(repr, names)) for names in (named, promised))
    return (
        f"the client is of {belongs}, but this server's populations are {there}; if its owner agrees, start it with "
        "one of these as --population"
    )


def _come_back(reason: str, seconds: float) -> messages.CheckInReply:
    return messages.CheckInReply(
        come_back=messages.ComeBack(seconds=spread(seconds), reason=reason), protocols=[PROTOCOL]
    )
