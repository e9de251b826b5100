"""Sends spans of rounds to the collector that the environment names, by the variables of OpenTelemetry's standard."""

import contextlib
import os
from collections.abc import Iterator

from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.extras import MissingExtraError, extra
from fedlm.fl_core.rounds.tracing import traced

_NAME_A_COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@contextlib.contextmanager
def traces() -> Iterator[None]:
    """Send spans for as long as the context lasts, where there is a collector.

    Whatever hinders that is said in the log, and rounds go on: spans are sent by a thread of their own, and those that
    a collector does not take in time are dropped.
    """
    with contextlib.ExitStack() as opened:
        if any(map(os.environ.get, _NAME_A_COLLECTOR)):
            try:
                with extra("tracing"):
                    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
                    from opentelemetry.sdk.trace.export import BatchSpanProcessor
                opened.enter_context(traced(BatchSpanProcessor(OTLPSpanExporter())))
            except MissingExtraError as error:
                warn("traces_not_sent", why=str(error))
        yield
