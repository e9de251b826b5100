"""The log: JSON whoever speaks, a line a second of each cause, and files that are put aside."""

import json
import logging
import os
import subprocess
import sys

import pytest

from fedlm.fl_core.deployment import event_log
from fedlm.fl_core.deployment.event_log import HoldingBack, event, json_log, warn
from fedlm.fl_core.errors import ConfigurationError


class Kept(logging.Handler):
    """Keeps messages, with how many were held back, and the fields of warnings and the last counts of clients."""

    def __init__(self):
        super().__init__()
        self.kept, self.fields, self.counts = [], [], {}

    def emit(self, record):
        fields = getattr(record, "fields", {})
        self.kept.append((record.getMessage(), fields.get("held_back")))
        if record.getMessage() == "warnings_of_clients":
            self.counts = fields["counts"]
        else:
            self.fields.append(fields)


def record_of(name, level=logging.WARNING, logger="fedlm.serving"):
    return logging.LogRecord(logger, level, f"/lib/{name}.py", 7, name, (), None)


def test_warnings_of_one_cause_come_once_a_second_and_none_is_forgotten():
    now, kept = [0.0], Kept()
    held = HoldingBack(kept, lambda: now[0])
    for hundredth in range(250):
        now[0] = hundredth / 100
        held.handle(record_of("refused"))
        held.handle(record_of("round_opened", logging.INFO))
    held.handle(record_of("another"))
    held.close()
    refused = [count for name, count in kept.kept if name == "refused"]
    assert (len(refused), refused[0]) == (4, None)
    assert sum(1 + (count or 0) for count in refused) == 250
    assert len([name for name, _ in kept.kept if name == "round_opened"]) == 250, "events are told, all of them"
    assert ("another", None) in kept.kept


def test_a_library_is_held_back_by_the_place_that_speaks():
    kept = Kept()
    held = HoldingBack(kept, lambda: 0.0)
    for number in range(20):
        record = record_of("asyncio", logger="asyncio")
        record.msg = f"Task {number} was never awaited"
        held.handle(record)
    assert len(kept.kept) == 1


def test_whatever_a_process_says_is_json():
    said = """
import asyncio, logging, os, sys, warnings
from fedlm.fl_core.deployment.event_log import event, json_log
with json_log():
    event("begun", number=1)
    os.write(2, b"E0000 00:00:1.5  77 transport.cc:88] Handshake failed\\n")
    os.write(2, b"E0000 00:00:1.6  77 transport.cc:88] Handshake failed\\n")
    logging.basicConfig()
    logging.getLogger("asyncio").error("a task\\nfailed")
    print("printed by a library", file=sys.stderr)
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("fedlm.transport").exception("connection_failed")
print("a user's mistake", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=120, check=True)
    *lines, last = done.stderr.splitlines()
    found = [json.loads(line) for line in lines]
    assert last == "a user's mistake", "what is said after it is said as it is"
    assert [line["number"] for line in found if line["event"] == "begun"] == [1]
    assert any(line.get("text") == "a task\nfailed" and line["event"] == "asyncio" for line in found)
    assert any("ZeroDivisionError" in line.get("exception", "") for line in found)
    handshakes = [line for line in found if "Handshake" in line.get("text", "")]
    assert [line.get("held_back") for line in handshakes] == [None, 0]
    assert any(line.get("text") == "printed by a library" for line in found)


def test_files_are_put_aside_when_they_are_full(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "_FILE_BYTES", 2000)
    path = tmp_path / "log"
    with json_log(path):
        for number in range(200):
            event("counted", number=number)
        warn("ended")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3", "log.4"]
    assert all(one.stat().st_size <= 2000 for one in tmp_path.iterdir())
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "ended"
    assert not logging.getLogger("stderr").handlers


def test_a_log_that_cannot_be_written_is_a_mistake_of_one_line(tmp_path):
    before = os.fstat(2)
    with pytest.raises(ConfigurationError, match="no log can be written there"), json_log(tmp_path / "no" / "log"):
        pass
    assert os.fstat(2).st_ino == before.st_ino


def refusals_of(kept):
    """How many refusals the lines of each client speak of."""
    found = {}
    for fields in kept.fields:
        found[fields["client"]] = found.get(fields["client"], 0) + 1 + fields.get("held_back", 0)
    return found


def refused(client):
    record = record_of("call_refused")
    record.fields = {"client": client, "why": "the message is malformed"}
    return record


def test_many_refusals_of_some_clients_hide_none_of_another():
    now, kept = [0.0], Kept()
    held = HoldingBack(kept, lambda: now[0])
    for call in range(120):
        now[0] = call / 10
        for number in range(112):
            held.handle(refused(f"crowd{number % 4}"))
        if call % 10 == 5:
            held.handle(refused("fifth"))
    held.close()
    assert [fields["client"] for fields in kept.fields].count("fifth") == 12
    assert refusals_of(kept) == kept.counts == {f"crowd{number}": 120 * 28 for number in range(4)} | {"fifth": 12}
    assert len(kept.fields) <= 12 + 4 * 13


def test_a_crowd_of_clients_leaves_nothing_in_memory_but_their_counts(monkeypatch):
    monkeypatch.setattr(event_log, "_CLIENTS_COUNTED", 100)
    now, kept = [0.0], Kept()
    held = HoldingBack(kept, lambda: now[0])
    for number in range(500):
        now[0] = number / 10
        held.handle(refused(f"client{number}"))
    assert len(held._told) <= 11
    held.close()
    assert kept.counts == {f"client{number}": 1 for number in range(400, 500)}


def test_a_new_file_begins_with_how_often_each_client_was_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "_FILE_BYTES", 2000)
    path = tmp_path / "log"
    with json_log(path):
        for _ in range(3):
            warn("call_refused", client="ann", why="the message is malformed")
        for number in range(200):
            event("counted", number=number)
        first = json.loads(path.read_text().splitlines()[0])
    assert (first["event"], first["counts"]) == ("warnings_of_clients", {"ann": 3})
