"""Answers clients of a server that holds several runs: with the run that is trained now, or when to come back."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, UnknownArtifactError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.event_log import of_run, warn
from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk
from fedlm.fl_core.deployment.protocol.interface import RunHandlers, Upload
from fedlm.fl_core.deployment.server.pacing import spread
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter, RateLimits
from fedlm.fl_core.deployment.server.reports.receiving import refusal

_BETWEEN_RUNS_SECONDS, _NO_MORE_SECONDS = 5.0, 60.0


class CurrentRun:
    """The `RunHandlers` of whichever run is trained now, whose events name the run. Used in one event loop.

    Attributes:
      queued: whether a run is trained soon, where none is now.
    """

    def __init__(self) -> None:
        self.queued = True
        self._current: RunHandlers | None = None
        self._name = ""
        self._limiter = RateLimiter(RateLimits.for_rounds(0, _BETWEEN_RUNS_SECONDS))

    def be(self, name: str, handlers: RunHandlers) -> None:
        """Answer for a run from here on."""
        self._name, self._current = name, handlers

    def be_none(self) -> None:
        """Answer for no run from here on."""
        self._current = None

    @contextlib.contextmanager
    def _held(self, peer: str) -> Iterator[RunHandlers | None]:
        """Give who answers a call of a client, which is counted here where no run counts it."""
        if self._current is None:
            self._limiter.call(peer)
            yield None
            return
        with of_run(self._name):
            yield self._current

    @property
    def _seconds(self) -> float:
        return _BETWEEN_RUNS_SECONDS if self.queued else _NO_MORE_SECONDS

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        with self._held(peer) as held:
            if held is None:
                return _come_back("no run is trained now", self._seconds)
            try:
                reply = await held.check_in(peer, request)
            except RefusedError as error:
                if request.protocol != PROTOCOL:
                    raise
                # The next run may be one that it can train.
                warn("check_in_refused", client=peer, reason=str(error))
                return _come_back(str(error), _NO_MORE_SECONDS)
        if reply.come_back.done:
            return _come_back(reply.come_back.reason, _NO_MORE_SECONDS)
        return reply

    async def download(
        self, peer: str, request: DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        with self._held(peer) as held:
            if held is None:
                raise UnknownArtifactError("no run is trained now; check in again")
            name, chunks = self._name, held.download(peer, request, bytes_at_once)
        async with contextlib.aclosing(chunks):
            async for chunk in _named(name, chunks):
                yield chunk

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        with self._held(peer) as held:
            if held is None:
                reply = refusal(messages.UploadReply.STALE, "no run is trained now")
                reply.come_back_seconds = spread(self._seconds)
                return reply
            return await held.upload(peer, upload)

    async def secure_sum(self, peer: str, request: messages.SecureRequest) -> messages.SecureReply:
        with self._held(peer) as held:
            if held is None:
                return messages.SecureReply(state=messages.SecureReply.OVER, reason="no run is trained now")
            return await held.secure_sum(peer, request)


async def _named(name: str, chunks: AsyncGenerator[ServedChunk, None]) -> AsyncIterator[ServedChunk]:
    # Step by step: who takes a chunk goes on in the same context.
    while True:
        with of_run(name):
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
        yield chunk


def _come_back(reason: str, seconds: float) -> messages.CheckInReply:
    return messages.CheckInReply(
        come_back=messages.ComeBack(seconds=spread(seconds), reason=reason), protocols=[PROTOCOL]
    )
