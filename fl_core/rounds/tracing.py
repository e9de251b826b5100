"""Spans of rounds, for OpenTelemetry; they cost nothing where nobody receives them.

A span says how long something took, and counts: never who took part, nothing of anybody's and nothing of noise. All
processes of a round put their spans into one trace, without telling each other: its names follow from the round's.
"""

import contextlib
import contextvars
import hashlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, Tracer

_TRACE_BYTES, _SPAN_BYTES = 16, 8
_tracer: "Tracer | None" = None
# Of the next span: of what its trace and itself are named; by chance where that is empty.
_NAMED: contextvars.ContextVar[tuple[str, str]] = contextvars.ContextVar("named", default=("", ""))


@contextlib.contextmanager
def traced(processor: "SpanProcessor") -> Iterator[None]:
    """Give spans of this process to a processor, for as long as the context lasts; then it is shut down."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            name, _ = _NAMED.get()
            return _number(name, _TRACE_BYTES) if name else super().generate_trace_id()

        def generate_span_id(self) -> int:
            _, name = _NAMED.get()
            return _number(name, _SPAN_BYTES) if name else super().generate_span_id()

    global _tracer
    # What the environment says of the resource goes before.
    resource = Resource({"service.name": "fedlm"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    _tracer = provider.get_tracer("fedlm")
    try:
        yield
    finally:
        _tracer = None
        provider.shutdown()


def round_trace(run: str, round_number: int) -> str:
    """Name the trace of a round, alike in all processes."""
    return f"{run} {round_number}"


def span(name: str, *, trace: str = "", named: str = "", **facts: int | str) -> AbstractContextManager[None]:
    """Make a span of what is done in the context, and let it be the parent of those within.

    Args:
      trace: names the trace, where the span has no parent.
      named: names the span within it, for `past` in other processes.
      facts: see `say`.
    """
    return contextlib.nullcontext() if _tracer is None else _span(_begun(_tracer, name, trace, named), facts)


def say(**facts: int | str) -> None:
    """Add facts to the current span: numbers and outcomes; the test of spans has a list of those that may be known."""
    if _tracer is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes(facts)


def past(name: str, began: float, ended: float, *, of: tuple[str, str] | None = None, **facts: int | str) -> None:
    """Make a span of something that is over, with moments by `time.monotonic`.

    Args:
      of: names the trace and the span that is its parent; the current one where None.
    """
    if _tracer is None:
        return
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    parent = None
    if of is not None:
        ids = _number(of[0], _TRACE_BYTES), _number(of[1], _SPAN_BYTES)
        parent = set_span_in_context(NonRecordingSpan(SpanContext(*ids, True, TraceFlags(TraceFlags.SAMPLED))))
    now, clock = time.time_ns(), time.monotonic()
    begun = _tracer.start_span(name, parent, start_time=now - round(1e9 * (clock - began)), attributes=facts)
    begun.end(now - round(1e9 * (clock - ended)))


def trace_phases(opened: float, selected: float, over: float) -> None:
    """Make spans of the phases of an attempt: until all clients were selected, and until no report was waited for."""
    past("selection", opened, min(selected, over))
    past("reporting", min(selected, over), over)


def _begun(tracer: "Tracer", name: str, trace: str, named: str) -> "Span":
    before = _NAMED.set((trace, named))
    try:
        return tracer.start_span(name)
    finally:
        _NAMED.reset(before)


@contextlib.contextmanager
def _span(begun: "Span", facts: dict[str, int | str]) -> Iterator[None]:
    from opentelemetry.trace import StatusCode, use_span

    begun.set_attributes(facts)
    # An error's words may name somebody: whether there was one is all that is said.
    with use_span(begun, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception:
            begun.set_status(StatusCode.ERROR)
            raise
        finally:
            begun.end()


def _number(name: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:size], "big")
