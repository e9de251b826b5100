"""Tells clients what is in the log, and nothing before it is there."""

import asyncio
from collections.abc import AsyncGenerator

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fedlm_client.transparency.logged_plans import plan_leaf, plan_of
from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk
from fedlm.fl_core.deployment.protocol.interface import RunHandlers, Upload
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter, RateLimits
from fedlm.fl_core.deployment.transparency.stored_log import StoredLog

_MOST_SIZES, _SECONDS_BETWEEN_CALLS = 16, 5.0


class HandlersWithLog:
    """`fedlm.fl_core.deployment.protocol.interface.Handlers` of whoever answers for runs, and of a log."""

    def __init__(self, inner: RunHandlers, log: StoredLog):
        self.inner, self._log = inner, log
        self._limiter = RateLimiter(RateLimits.for_rounds(0, _SECONDS_BETWEEN_CALLS))

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        """Answer as the inner ones do, once what the client is told is in the log."""
        reply = await self.inner.check_in(peer, request)
        selected = reply.WhichOneof("answer") == "selected"
        if selected:
            await self._enter(plan_leaf(plan_of(reply.selected)))
        sizes = request.log_sizes[:_MOST_SIZES]
        # A client that names no size does not look at the log.
        if sizes and (selected or list(sizes) != [self._log.signed.size]):
            shown = await self._shown(list(sizes))
            reply.tree_head.CopyFrom(shown.tree_head)
            reply.consistency.extend(shown.consistency)
        return reply

    async def log(self, peer: str, request: messages.LogRequest) -> messages.LogReply:
        """Show what the log has of a run."""
        self._limiter.call(peer)
        # Another process may have entered some of it.
        await asyncio.to_thread(self._log.refresh)
        return await self._shown(list(request.log_sizes[:_MOST_SIZES]), request.run)

    async def _enter(self, leaf: bytes) -> None:
        if self._log.signed.missing([leaf]):
            await asyncio.to_thread(self._log.enter, [leaf])

    async def _shown(self, sizes: list[int], run: str = "") -> messages.LogReply:
        # Where several processes answer, another may have shown more.
        if max(sizes, default=0) > self._log.signed.size:
            await asyncio.to_thread(self._log.refresh)
        return self._log.signed.reply(sizes, run)

    def download(
        self, peer: str, request: DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        """See `fedlm.fl_core.deployment.protocol.interface.RunHandlers.download`."""
        return self.inner.download(peer, request, bytes_at_once)

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        """See `fedlm.fl_core.deployment.protocol.interface.RunHandlers.upload`."""
        return await self.inner.upload(peer, upload)

    async def secure_sum(self, peer: str, request: messages.SecureRequest) -> messages.SecureReply:
        """See `fedlm.fl_core.deployment.protocol.interface.RunHandlers.secure_sum`."""
        return await self.inner.secure_sum(peer, request)
