"""Counts and times what clients ask for, for Prometheus; knows no client by name."""

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk
from fedlm.fl_core.deployment.protocol.interface import CountedUpload, Handlers, Upload

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_SLOW = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_FAILED = "failed"


class CallMetrics:
    """The counters of one server.

    Attributes:
      registry: of all of them, with those of the process.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self.check_ins = Counter("fedlm_check_ins", "Check-ins, by answer.", ["answer"], registry=registry)
        self.check_in_seconds = Histogram(
            "fedlm_check_in_seconds", "Time to answer a check-in.", buckets=_FAST, registry=registry
        )
        self.downloads = Counter("fedlm_downloads", "Downloads, by how they ended.", ["end"], registry=registry)
        self.reports = Counter("fedlm_reports", "Reports of clients, by answer.", ["answer"], registry=registry)
        self.report_seconds = Histogram(
            "fedlm_report_seconds", "Time from a report's first byte to its answer.", buckets=_SLOW, registry=registry
        )
        self.bytes = Counter(
            "fedlm_transferred_bytes",
            "Model bytes sent (down) and update bytes received (up).",
            ["way"],
            registry=registry,
        )
        # Counts that begin with nothing, so that the first of an answer is an increase.
        for status in messages.UploadReply.Status.values():
            if status != messages.UploadReply.STATUS_UNSPECIFIED:
                self.reports.labels(_answer(status))


class HandlersWithMetrics:
    """`fedlm.fl_core.deployment.protocol.interface.Handlers` that measures others."""

    def __init__(self, inner: Handlers, metrics: CallMetrics):
        self.inner, self._metrics = inner, metrics
        self._down, self._up = metrics.bytes.labels("down"), metrics.bytes.labels("up")

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.check_in`."""
        with _timed(self._metrics.check_in_seconds), _counting_failures(self._metrics.check_ins):
            reply = await self.inner.check_in(peer, request)
        self._metrics.check_ins.labels(reply.WhichOneof("answer")).inc()
        return reply

    async def download(
        self, peer: str, request: DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.download`."""
        end = "broken"
        try:
            async with contextlib.aclosing(self.inner.download(peer, request, bytes_at_once)) as chunks:
                async for chunk in chunks:
                    self._down.inc(chunk.size)
                    yield chunk
            end = "whole"
        finally:
            self._metrics.downloads.labels(end).inc()

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.upload`."""
        with _timed(self._metrics.report_seconds), _counting_failures(self._metrics.reports):
            reply = await self.inner.upload(peer, CountedUpload(upload, self._up.inc))
        self._metrics.reports.labels(_answer(reply.status)).inc()
        return reply

    async def secure_sum(self, peer: str, request: messages.SecureRequest) -> messages.SecureReply:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.secure_sum`."""
        return await self.inner.secure_sum(peer, request)

    async def log(self, peer: str, request: messages.LogRequest) -> messages.LogReply:
        """See `fedlm.fl_core.deployment.protocol.interface.Handlers.log`."""
        return await self.inner.log(peer, request)


def _answer(status: "messages.UploadReply.Status") -> str:
    return messages.UploadReply.Status.Name(status).lower()


@contextlib.contextmanager
def _timed(histogram: Histogram) -> Iterator[None]:
    started = time.perf_counter()
    yield
    histogram.observe(time.perf_counter() - started)


@contextlib.contextmanager
def _counting_failures(counter: Counter) -> Iterator[None]:
    """Count what ends without an answer, as when the client goes away."""
    try:
        yield
    except BaseException:
        counter.labels(_FAILED).inc()
        raise
