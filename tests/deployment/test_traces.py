"""Spans say what took how long in a round, and how many clients there were; nothing of anybody's."""

import asyncio
import contextlib
import logging
import sys

import pytest

from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.event_log import handled_by
from fedlm.fl_core.deployment.operations.traces import traces
from fedlm.fl_core.deployment.roles import coordinate
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from fedlm.fl_core.rounds import tracing
from tests.deployment import small_deployment as small
from tests.deployment.test_aggregators import aggregators_here

COUNTS = {"selected", "reported", "refused", "declined", "lost"}
# What may be known, by the span and its parent: add nothing that says who took part, or anything of theirs or of noise.
ALLOWED = {
    ("round", None): {"round"},
    ("attempt", "round"): {"round", "outcome"} | COUNTS,
    ("selection", "attempt"): set(),
    ("reporting", "attempt"): set(),
    ("aggregation", "attempt"): set(),
    ("averaging", "round"): set(),
    ("checkpoint", "round"): set(),
}
SHARDS = {("shard", "attempt"): {"reports"}}
PRIVATE = small.PRIVACY | {"over_selection": 1.0, "min_separation": 1}


@contextlib.contextmanager
def spans_kept():
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    with tracing.traced(SimpleSpanProcessor(exporter)):
        yield exporter.get_finished_spans


def check_spans(spans, allowed, rounds):
    names = {span.context.span_id: span.name for span in spans}
    found = [((span.name, span.parent and names[span.parent.span_id]), span) for span in spans]
    assert {(kind, frozenset(span.attributes)) for kind, span in found} == {
        (kind, frozenset(facts)) for kind, facts in allowed.items()
    }
    assert len({span.context.trace_id for span in spans}) == rounds, "one trace a round"
    assert not any(span.events or span.links or span.status.description for span in spans)
    attempts = [dict(span.attributes) for span in spans if span.name == "attempt"]
    assert [(one["outcome"], one["selected"], one["reported"]) for one in attempts] == [("finished", 8, 8)] * rounds
    assert all(span.resource.attributes.keys() == {"service.name"} for span in spans)


async def train(tmp_path, settings):
    async with asyncio.timeout(small.PATIENCE), small.Server(small.task(settings), tmp_path / "run") as server:
        clients = [small.make_client(server.port, tmp_path, one) for one in range(8)]
        async with small.running(clients):
            assert await server.over


async def test_a_round_is_a_trace_of_what_it_is_made_of_and_of_nothing_else(tmp_path):
    with spans_kept() as kept:
        await train(tmp_path, small.deployment(**PRIVATE, rounds=1))
    check_spans(kept(), ALLOWED, rounds=1)


@pytest.mark.long
async def test_shards_of_aggregators_are_in_the_trace_of_their_round(tmp_path, free_port):
    settings, url = small.deployment(**PRIVATE, rounds=2), sqlite_url(tmp_path / "state.db")
    clients = [small.make_client(free_port, tmp_path, one) for one in range(8)]
    here = aggregators_here(2, settings, tmp_path, url, free_port)
    with spans_kept() as kept:
        async with asyncio.timeout(small.PATIENCE), here, small.running(clients):
            assert await coordinate(small.task(settings), tmp_path / "run", Endpoints(), [].append, database=url)
    check_spans(kept(), ALLOWED | SHARDS, rounds=2)
    assert sum(one.attributes["reports"] for one in kept() if one.name == "shard") == 16


async def test_rounds_go_on_while_the_collector_is_away(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with traces():
        await train(tmp_path, small.deployment(rounds=1, **small.LINEAR))
    assert "Failed to export spans" in caplog.text


def test_without_the_extra_the_log_says_which_and_without_a_collector_nothing_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    said, handler = [], logging.Handler()
    handler.emit = said.append
    with handled_by(handler), traces():
        assert not said
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with handled_by(handler), traces(), tracing.span("round"):
        assert "pip install 'fedlm[tracing]'" in said[0].fields["why"]
