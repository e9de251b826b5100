"""An import that is stopped at any point leaves no store, and the same import goes on to the same store."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.simulations.data import import_stages, importing
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.base import Part, Reading
from fedlm.simulations.data.sources.tables import jsonl
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.store.token_store import TokenStore

WORDS = "alpha beta gamma delta epsilon zeta eta theta".split()
SETTINGS = ImportSettings(vocabulary_size=60)

COMMAND = """
import functools, sys
from pathlib import Path
from fedlm.simulations.data import importing
from fedlm.simulations.data.sources.tables import jsonl
importing.ENCODE_BYTES = 4000
jsonl.byte_parts = functools.partial(jsonl.byte_parts, part_bytes=4000)
print("begins", flush=True)
settings = importing.ImportSettings(vocabulary_size=60)
importing.import_text("jsonl", jsonl.JsonLines((Path(sys.argv[1]),)), sys.argv[2], settings, workers=1)
"""


@pytest.fixture
def messages(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "byte_parts", functools.partial(jsonl.byte_parts, part_bytes=4000))
    monkeypatch.setattr(importing, "ENCODE_BYTES", 4000)
    path = tmp_path / "messages.jsonl"
    rows = ({"user": i % 97, "text": " ".join(WORDS[(i * j) % 8] for j in range(1 + i % 9))} for i in range(600))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def contents(store):
    return {file.name: file.read_bytes() for file in store.iterdir()}


def run_import(messages, out, **options):
    return import_text("jsonl", JsonLines(paths=(messages,)), out, SETTINGS, workers=1, **options)


@pytest.mark.long
def test_stopped_after_every_step_it_ends_with_the_same_bytes_and_reads_nothing_again(messages, tmp_path, monkeypatch):
    steps: list[tuple] = []
    whole = contents(run_import(messages, tmp_path / "whole", progress=lambda *step: steps.append(step)).path)
    assert len(steps) > 15
    read, read_lines = [], jsonl.read_lines
    monkeypatch.setattr(jsonl, "read_lines", lambda *given: read.append(given[1].start) or read_lines(*given))
    out = tmp_path / "stopped"
    for stop in steps:

        def interrupt(*step, stop=stop):
            if step == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_import(messages, out, progress=interrupt)
        assert not out.exists()
    assert contents(run_import(messages, out).path) == whole
    assert len(read) == len(set(read)) > 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["messages.jsonl", "stopped", "whole"]


@pytest.mark.long
def test_an_import_of_other_files_begins_anew(messages, tmp_path):
    def interrupt(phase, done, total, unit):
        if phase == "tokenize":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_import(messages, tmp_path / "s", progress=interrupt)
    with messages.open("a") as file:
        file.write('{"user": "new", "text": "omega"}\n')
    store = TokenStore.open(run_import(messages, tmp_path / "s").path)
    assert sum(store.split(name).num_clients for name in ("train", "heldout", "test")) == 98


@pytest.mark.long
def test_killed_at_any_time_it_ends_with_the_same_bytes(messages, tmp_path):
    whole = run_import(messages, tmp_path / "whole").path
    out, environment = tmp_path / "killed", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for delay in (0.03, 0.1):
        words = [sys.executable, "-c", COMMAND, str(messages), str(out)]
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
    assert contents(run_import(messages, out, overwrite=True).path) == contents(whole)
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_named_and_the_import_goes_on(messages, tmp_path, fedlm_here, largest_file):
    words = ["data", "import", "jsonl", messages, "--workers", 1, "--vocabulary-size", 60, "--out", tmp_path / "s"]
    with largest_file(10_000):
        full = fedlm_here(*words)
    assert full.returncode == 2
    assert "cannot be written" in full.stderr
    assert "Make room" in full.stderr
    assert not (tmp_path / "s").exists()
    assert fedlm_here(*words).returncode == 0
    store = TokenStore.open(tmp_path / "s")
    assert sum(store.split(name).num_clients for name in ("train", "heldout", "test")) == 97


def kill_this_process(content, skipped):
    os.kill(os.getpid(), signal.SIGKILL)
    yield ClientText("never", [])


class Deadly(JsonLines):
    def open(self, workspace, progress):
        return Reading("parts", 3, [Part(index, 1) for index in range(3)], kill_this_process)


@pytest.mark.long
def test_a_killed_worker_is_named(messages, tmp_path):
    with pytest.raises(DataError, match=r"worker process of the import was killed.*fewer workers"):
        import_text("x", Deadly(paths=(messages,)), tmp_path / "s", SETTINGS, workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["messages.jsonl"]


def test_one_import_at_a_time(messages, tmp_path, monkeypatch):
    monkeypatch.setattr(import_stages, "run_lock", functools.partial(import_stages.run_lock, wait_seconds=0))

    def import_again(*step):
        with pytest.raises(ConfigurationError, match="another process is running there"):
            run_import(messages, tmp_path / "s")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_import(messages, tmp_path / "s", progress=import_again)
