"""`fedlm simulate` as a user runs it: a process, its files, its exit status."""

import json
import random
import time

import pytest

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from tests.support.processes import begin, finish_well, rows_of

SETTINGS = {
    "model": "cifg_tiny",
    "rounds": 8,
    "cohort-size": 6,
    "client-learning-rate": 0.5,
    "server-learning-rate": 0.01,
    "seed": 3,
    "length": 8,
    "evaluate-every": 2,
    "checkpoint-every": 2,
    "devices": 1,
}


def options(store, out, **changes):
    settings = SETTINGS | {"data": store, "out": out} | changes
    return ["simulate", *(f"--{name}={value}" for name, value in settings.items())]


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def finished(small_store, tmp_path_factory, fedlm_here):
    out = tmp_path_factory.mktemp("runs") / "whole"
    result = fedlm_here(*options(small_store, out))
    assert result.returncode == 0, result.stderr
    return out, result


@pytest.mark.long
def test_writes_metrics_and_a_summary(finished):
    out, result = finished
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(8))
    assert [row["round"] for row in rows if "heldout_perplexity" in row] == [1, 3, 5, 7]
    assert all(row["clients"] == 6 and row["bytes_up"] > 0 and row["steps"] > 0 for row in rows)
    summary = summary_of(out)
    assert summary["status"] == "finished"
    assert 1 < summary["test_perplexity"] < 120
    assert 0 < summary["test_accuracy"] < 1
    assert summary["privacy"] == "NOT PRIVATE"
    assert list((out / "tensorboard").glob("events*"))
    assert f"test perplexity {summary['test_perplexity']:.2f}" in result.stdout
    assert "NOT PRIVATE" in result.stdout
    assert "round 8/8" in result.stderr
    assert rows[-1]["heldout_loss"] < rows[1]["heldout_loss"] < 4.79, "4.79 is the loss of a uniform guess, ln 120"


@pytest.mark.long
def test_the_same_command_again_finds_the_run_finished_and_another_is_refused(finished, small_store, fedlm_here):
    out, _ = finished
    before = {path: path.read_bytes() for path in (out / "metrics.jsonl", out / "summary.json")}
    assert fedlm_here(*options(small_store, out)).returncode == 0
    refused = fedlm_here(*options(small_store, out, **{"client-learning-rate": 0.7}))
    assert refused.returncode == 2
    assert "--client-learning-rate was 0.5 and is now 0.7" in refused.stderr
    assert {path: path.read_bytes() for path in before} == before


PRIVATE = {
    "privacy": "banded",
    "bands": 2,
    "cohort-sampler": "min_separation",
    "min-separation": 2,
    "noise-multiplier": 0.5,
    "update-clip-norm": 0.3,
}


@pytest.mark.long
def test_killed_at_random_instants_it_ends_with_the_same_bits(small_store, tmp_path):
    """kill -9 after a random delay, again and again, until a start survives; then compare all that is written."""
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    changes = PRIVATE | {"noise-seed": "experiment"}
    ((output, _),) = finish_well(begin(*options(small_store, whole, **changes)))
    assert "NOT PRIVATE" in output
    assert start_and_kill(options(small_store, interrupted, **changes), interrupted, most=2) > 0
    finish_well(begin(*options(small_store, interrupted, **changes)))
    assert rows_of(interrupted) == rows_of(whole)
    for name in ("parameters_sha256", "test_perplexity"):
        assert summary_of(interrupted)[name] == summary_of(whole)[name]


@pytest.mark.long
def test_a_private_run_says_what_it_spent_and_so_does_its_ledger(small_store, tmp_path, fedlm_here):
    out = tmp_path / "private"
    result = fedlm_here(*options(small_store, out, **PRIVATE | {"rounds": 3}))
    assert result.returncode == 0, result.stderr
    guarantee = summary_of(out)["privacy_guarantee"]
    assert f"privacy: (epsilon = {rounded_up(guarantee['epsilon'])}, delta = " in result.stdout
    stated = fedlm_here("account", "ledger", out, "--json")
    assert json.loads(stated.stdout)["epsilon"] == guarantee["epsilon"]
    assert json.loads(stated.stdout)["assumptions"] == guarantee["assumptions"]
    assert "\n  assumptions: as `fedlm account ledger` lists them\n" in result.stdout


def start_and_kill(words, interrupted, most):
    """Start and kill until a start survives, or it was killed so often; returns how often that was."""
    rng = random.Random(0)
    kills = 0
    while kills < most:
        process = begin(*words)
        seen = read_rounds(interrupted)
        # Wait until this start has run a round, so that starts which die in their imports do not count for kills.
        while process.poll() is None and read_rounds(interrupted) == seen:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.4))
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        kills += 1
    return kills


def read_rounds(out):
    path = out / "metrics.jsonl"
    return path.read_bytes() if path.exists() else b""
