"""Answers clients of a server that holds several runs: with the run that is trained now, or when to come back."""

from collections.abc import AsyncGenerator

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import RefusedError, UnknownArtifactError
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk
from fedlm.fl_core.deployment.protocol.interface import Handlers, Upload
from fedlm.fl_core.deployment.server.pacing import spread
from fedlm.fl_core.deployment.server.reports.receiving import refusal

_BETWEEN_RUNS_SECONDS, _NO_MORE_SECONDS = 5.0, 60.0


class CurrentRun:
    """The `Handlers` of whichever run is trained now. Used in one event loop."""

    def __init__(self) -> None:
        self._current: Handlers | None = None

    def be(self, handlers: Handlers | None) -> None:
        """Answer for a run from here on; for none where None."""
        self._current = handlers

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        if self._current is None:
            return _come_back("no run is trained now", _BETWEEN_RUNS_SECONDS)
        try:
            reply = await self._current.check_in(peer, request)
        except RefusedError as error:
            if request.protocol != PROTOCOL:
                raise
            # The next run may be one that it can train.
            return _come_back(str(error), _NO_MORE_SECONDS)
        if reply.come_back.done:
            return _come_back(reply.come_back.reason, _NO_MORE_SECONDS)
        return reply

    async def download(
        self, peer: str, request: DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        if self._current is None:
            raise UnknownArtifactError("no run is trained now; check in again")
        async for chunk in self._current.download(peer, request, bytes_at_once):
            yield chunk

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        if self._current is None:
            reply = refusal(messages.UploadReply.STALE, "no run is trained now")
            reply.come_back_seconds = spread(_BETWEEN_RUNS_SECONDS)
            return reply
        return await self._current.upload(peer, upload)

    async def secure_sum(self, peer: str, request: messages.SecureRequest) -> messages.SecureReply:
        if self._current is None:
            return messages.SecureReply(state=messages.SecureReply.OVER, reason="no run is trained now")
        return await self._current.secure_sum(peer, request)


def _come_back(reason: str, seconds: float) -> messages.CheckInReply:
    return messages.CheckInReply(
        come_back=messages.ComeBack(seconds=spread(seconds), reason=reason), protocols=[PROTOCOL]
    )
