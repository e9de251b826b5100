"""`fedlm simulate` in two real processes against one: the same bits, also after a process was killed."""

import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from fedlm.fl_core.errors import ProcessLostError
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.processes import lost_processes
from fedlm.simulations.experiments.experiment import run_prepared
from fedlm.simulations.pretraining import run as pretraining
from tests.simulations.laws.tiny_model import NAME as TINY
from tests.support.processes import (
    LONGEST_SECONDS,
    begin,
    begin_two,
    finish,
    finish_well,
    kill_once,
    rows_of,
)

SETTINGS = {
    "model": "cifg_tiny",
    "rounds": 5,
    "cohort-size": 6,
    "client-learning-rate": 0.5,
    "server-learning-rate": 0.01,
    "seed": 3,
    "length": 8,
    "evaluate-every": 2,
    "checkpoint-every": 2,
    "devices": 1,
}


def words(store, out, **changes):
    settings = SETTINGS | {"data": store, "out": out} | changes
    return ["simulate", *(f"--{name}={value}" for name, value in settings.items()), "--save-client-scores"]


def run_alone(store, out, **changes):
    finish_well(begin(*words(store, out, **changes)))


def run_two(store, out, **changes):
    return finish_well(*begin_two(*words(store, out, **changes)))


def assert_same_run(found, expected):
    ours, theirs = (json.loads((out / "summary.json").read_text()) for out in (found, expected))
    assert (ours["machine"]["processes"], theirs["machine"]["processes"]) == (2, 1)
    assert ours["parameters_sha256"] == theirs["parameters_sha256"]
    for summary in (ours, theirs):
        del summary["training_seconds"], summary["machine"]["processes"]
    assert ours == theirs
    assert rows_of(found) == rows_of(expected)
    assert (found / "test_clients.parquet").read_bytes() == (expected / "test_clients.parquet").read_bytes()


@pytest.mark.long
def test_two_processes_give_the_bits_of_one(small_store, tmp_path):
    """Two times two devices against four: with two alone, the order of a sum would not matter. What the client
    algorithm remembers is the same everywhere too."""
    changes = {"client-algorithm": "mime_lite", "model": TINY}
    run_alone(small_store, tmp_path / "one", devices=4, **changes)
    (output, progress), second = run_two(small_store, tmp_path / "two", devices=2, **changes)
    assert_same_run(tmp_path / "two", tmp_path / "one")
    assert "test perplexity" in output
    assert "round 5/5" in progress
    assert second == ["", ""], "only the first process speaks"


PRIVATE = {
    "privacy": "banded",
    "bands": 2,
    "cohort-sampler": "min_separation",
    "min-separation": 2,
    "noise-multiplier": 0.5,
    "update-clip-norm": 0.3,
    "noise-seed": "experiment",
}


@pytest.mark.long
def test_two_processes_release_the_same_private_models_as_one(small_store, tmp_path):
    """The secret of the noise is in the folder of the first process; both draw the same noise, also after a restart."""
    run_alone(small_store, tmp_path / "one", devices=4, **PRIVATE)
    out = tmp_path / "two"
    for process in begin_two(*words(small_store, out, devices=2, **PRIVATE)):
        kill_once(process, lambda: rows_of(out))
    assert not (out / "summary.json").exists()
    run_two(small_store, out, devices=2, **PRIVATE)
    assert_same_run(out, tmp_path / "one")
    records = [PrivacyLedger(folder / "privacy" / "ledger.jsonl").records for folder in (out, tmp_path / "one")]
    assert records[0][1:] == records[1][1:]


@pytest.mark.long
def test_a_secret_of_noise_and_cohorts_reaches_both_processes(small_store, tmp_path):
    changes = {"privacy": "gaussian", "noise-multiplier": 1.0, "update-clip-norm": 0.3, "cohort-sampler": "poisson"}
    run_two(small_store, tmp_path, rounds=2, model=TINY, **changes)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["privacy_guarantee"]["rounds"] == 2
    ledger = PrivacyLedger(tmp_path / "privacy" / "ledger.jsonl")
    assert state(ledger).own.as_json() == summary["privacy_guarantee"]


def kill_one(processes, victim, out):
    """Kill a process in the midst of training; returns how the other ended."""
    rounds = len(rows_of(out)) + 3
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(rows_of(out)) < rounds:
        assert all(process.poll() is None for process in processes), [finish(process) for process in processes]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    processes[victim].send_signal(signal.SIGKILL)
    started = time.monotonic()
    status, _, errors = finish(processes[1 - victim])
    assert time.monotonic() - started < 120
    assert finish(processes[victim])[0] == -signal.SIGKILL
    return status, errors


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_wherever_a_run_notices_that_a_process_is_gone_it_says_so(kind, monkeypatch, tmp_path):
    def exchange(*_):
        raise kind("UNKNOWN: Gloo AllGather failed")

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(pretraining, "prepare_pretraining", exchange)
    prepared = SimpleNamespace(identity=SimpleNamespace(check_same_in_all_processes=exchange), precision=None)
    for run in (lambda: run_prepared(prepared, tmp_path), lambda: pretraining.run_pretraining(None, tmp_path)):
        with pytest.raises(ProcessLostError, match=r"\(UNKNOWN: Gloo AllGather failed\); most likely one of them"):
            run()


def test_other_mistakes_are_not_taken_for_a_lost_process(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for error in (ValueError("too many values"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")):
        with pytest.raises(type(error), match=str(error)), lost_processes():
            raise error


@pytest.mark.long
def test_when_a_process_is_killed_the_other_ends_and_the_run_can_be_resumed(small_store, tmp_path):
    out, endless = tmp_path / "two", {"rounds": 100_000, "model": TINY}
    status, errors = kill_one(begin_two(*words(small_store, out, **endless)), 1, out)
    assert status == 1
    assert "most likely one of them ended" in errors
    assert "Traceback" not in errors
    before = len(rows_of(out))
    # Without process 0 JAX aborts the others, if they do not find out before.
    status, errors = kill_one(begin_two(*words(small_store, out, **endless)), 0, out)
    assert status in (1, -signal.SIGABRT)
    assert "most likely" in errors
    assert not (out / "summary.json").exists()
    assert len(rows_of(out)) > before > 0


@pytest.mark.long
def test_processes_with_other_settings_or_data_or_none_all_end_with_a_message(small_store, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for file in filter(Path.is_file, small_store.iterdir()):
        (other / file.name).write_bytes(file.read_bytes())
    header = json.loads((other / "store.json").read_text())
    header["splits"]["train"]["tokens"] += 1
    (other / "store.json").write_text(json.dumps(header))
    message = refusal(small_store, tmp_path / "out", ["--seed=4", "--upload-bits=4", f"--data={other}"])
    assert "upload-bits is 8 in process 0 and 4 there" in message
    assert "seed is 3 in process 0 and 4 there" in message
    assert "content of data is" in message
    assert "/nowhere/store.json: there is no such file" in refusal(small_store, tmp_path / "out", ["--data=/nowhere"])


def refusal(store, out, of_second):
    """Start two processes that do not fit; returns what the first says."""
    results = [finish(process) for process in begin_two(*words(store, out), of_second=of_second)]
    for status, output, errors in results:
        assert (status, output) == (2, "")
        assert errors.startswith("fedlm simulate: ")
        assert errors.count("\n") == 1
    assert not out.exists()
    return results[0][2]
