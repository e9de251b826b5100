"""A disk that fills up while a private deployment runs: the server says which file, and what was promised holds."""

import asyncio
import contextlib
import errno
import os
import shutil
from types import SimpleNamespace

import pytest

from fedlm.fedlm_client import files as files_of_devices
from fedlm.fl_core.deployment.state import retrying
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, sqlite_url
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from tests.deployment import kills
from tests.deployment import small_deployment as small

ROUNDS, WHOLE = 4, 2
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def run(server, seen, folder, filled):
    """Run a server to its end; its disk is full from the end of a round on."""
    async with asyncio.timeout(small.PATIENCE), server, small.running(seen.clients(server.port, folder)):
        while len(server.rows) < WHOLE and not server.over.done():
            await asyncio.sleep(0.005)
        with filled:
            assert await server.over


@contextlib.contextmanager
def appends(monkeypatch, name, record=b""):
    """Take only the beginning of what is appended to a file."""
    real, begun = os.pwrite, []

    def pwrite(descriptor, data, offset):
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith(name) or not (begun or record in data):
            return real(descriptor, data, offset)
        if begun:
            raise NO_SPACE
        begun.append(name)
        return real(descriptor, data[:10], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        yield
    assert begun


@contextlib.contextmanager
def checkpoints(monkeypatch, largest_file):
    real = Checkpoints.save

    def save(*words):
        with largest_file(4096):
            real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        yield


@contextlib.contextmanager
def files(monkeypatch, name):
    """Take only the beginning of a file that is written at once."""
    real = files_of_devices.write_synced

    def write(path, content, *words):
        if not path.name.startswith(name):
            return real(path, content, *words)
        real(path, content[:10], *words)
        raise NO_SPACE

    with monkeypatch.context() as patch:
        patch.setattr(files_of_devices, "write_synced", write)
        yield


@contextlib.contextmanager
def no_room(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50_000))
        yield


@contextlib.contextmanager
def database(out, largest_file):
    with largest_file(out.joinpath(DATABASE_FILE + "-wal").stat().st_size):
        yield


# Threads of orbax that learn of the failure late find their event loop closed.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "what",
    [
        *("room", "release", "checkpoint", "database"),
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("intent", "metrics.jsonl", "summary.json")),
    ],
)
def test_the_file_is_named_and_the_run_goes_on_once_there_is_room(tmp_path, monkeypatch, largest_file, what):
    monkeypatch.setattr(retrying, "RETRY_SECONDS", 0.5)
    settings, out, seen = small.deployment(**kills.SETTINGS | {"rounds": ROUNDS}), tmp_path / "run", kills.Seen()
    filled, file = {
        "room": lambda: (no_room(monkeypatch), "checkpoints"),
        "intent": lambda: (appends(monkeypatch, "ledger.jsonl", b'"intent"'), "privacy/ledger.jsonl"),
        "release": lambda: (appends(monkeypatch, "ledger.jsonl", b'"release"'), "privacy/ledger.jsonl"),
        "checkpoint": lambda: (checkpoints(monkeypatch, largest_file), "checkpoints/3"),
        "metrics.jsonl": lambda: (appends(monkeypatch, "metrics.jsonl"), "metrics.jsonl"),
        "database": lambda: (Later(lambda: database(out, largest_file)), DATABASE_FILE),
        "summary.json": lambda: (files(monkeypatch, "summary.json"), "summary.json"),
    }[what]()
    server = small.Server(small.task(settings), out)
    with pytest.raises(UserError) as caught:
        asyncio.run(run(server, seen, tmp_path, filled))
    message = str(caught.value)
    assert f"{out / file}: " in message
    assert "room" in message
    assert "\n" not in message

    ledger = PrivacyLedger(out / "privacy/ledger.jsonl")
    released = [record["rounds"] for record in ledger.records if record["kind"] == "release"]
    assert [row["round"] + 1 for row in server.rows] == released[: len(server.rows)]
    assert max(seen.models) <= max(released), "a model went out before the ledger had it"
    for path in (out / "privacy/ledger.jsonl", out / "metrics.jsonl"):
        assert path.read_bytes().endswith(b"}\n")
    left = [path.name for path in out.rglob("*") if "partial" in path.name or "tmp" in path.name]
    assert not left
    assert not (out / "summary.json").exists()

    asyncio.run(run(small.Server(small.task(settings), out), seen, tmp_path, contextlib.nullcontext()))
    # Only where a checkpoint was begun may somebody have seen something of it, so that noise begins anew.
    kinds = {record["kind"] for record in PrivacyLedger(out / "privacy/ledger.jsonl").records}
    assert ("restart" in kinds) == (what == "checkpoint")
    kills.check(out, sqlite_url(out / DATABASE_FILE), settings, seen.models)


class Later:
    """A context that is made when it is entered."""

    def __init__(self, make):
        self._make = make

    def __enter__(self):
        self._made = self._make()
        return self._made.__enter__()

    def __exit__(self, *exception):
        return self._made.__exit__(*exception)
