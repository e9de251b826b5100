"""`fedlm pretrain` in real processes: killed and resumed, in two processes, and as a start for `fedlm simulate`."""

import json

import pytest

from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from tests.support.processes import ENVIRONMENT, begin, begin_two, finish_well, kill_once, rows_of

SETTINGS = {
    "model": "cifg_tiny",
    "steps": 6,
    "batch-size": 8,
    "length": 8,
    "noise-multiplier": 1.5,
    "noise-seed": "experiment",
    "evaluate-every": 3,
    "checkpoint-every": 2,
    "heldout-examples": 20,
    "test-examples": 20,
    "devices": 1,
}


def options(store, out, **changes):
    settings = SETTINGS | {"data": store, "out": out} | {name.replace("_", "-"): v for name, v in changes.items()}
    return ["pretrain", *(f"--{name}={value}" for name, value in settings.items() if value is not None)]


def run(store, out, **changes):
    ((output, _),) = finish_well(begin(*options(store, out, **changes)))
    return json.loads((out / "summary.json").read_text()), output


@pytest.mark.long
def test_killed_and_resumed_gives_the_same_parameters(small_store, tmp_path, fedlm_here):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected, output = run(small_store, whole)
    assert expected["privacy"].startswith("NOT PRIVATE")
    assert "NOT PRIVATE" in output
    assert "NOT PRIVATE" in fedlm_here("account", "ledger", whole).stdout
    assert (expected["steps"], expected["units"]["unit"]) == (6, "example")
    kill_once(begin(*options(small_store, killed)), (killed / "checkpoints" / "2").exists)
    assert not (killed / "summary.json").exists()
    summary, _ = run(small_store, killed)
    assert summary["parameters_sha256"] == expected["parameters_sha256"]
    rows, expected_rows = (
        [{name: row[name] for name in row if name not in TIMES} for row in rows_of(out)] for out in (killed, whole)
    )
    assert rows == expected_rows
    assert len(rows) == 6


TIMES = ("seconds", "tokens_per_second", "mfu")


@pytest.mark.long
def test_adapters_are_the_same_on_any_number_of_devices_and_in_two_processes(
    small_store, tmp_path, fedlm_here, monkeypatch
):
    """Also where what is frozen is spread over the devices, and what is dropped is drawn in another process. As users'
    runs are compiled: without optimizations, programs for one device and for two round in other orders."""
    monkeypatch.delitem(ENVIRONMENT, "JAX_DISABLE_MOST_OPTIMIZATIONS")
    first = {"steps": 1, "privacy": "none", "noise_multiplier": None, "noise_seed": None}
    assert fedlm_here(*options(small_store, tmp_path / "base", **first)).returncode == 0
    lora = {"init_from": tmp_path / "base", "lora_rank": 2, "lora_dropout": 0.25, "steps": 4}
    alone, _ = run(small_store, tmp_path / "alone", **lora)
    assert alone["trained_parameters"] < alone["parameters"]
    finish_well(*begin_two(*options(small_store, tmp_path / "two", devices=2, sharding="full", **lora)))
    two = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert two["machine"]["processes"] == 2
    assert two["parameters_sha256"] == alone["parameters_sha256"]


@pytest.mark.long
def test_a_private_run_says_what_it_spent_and_starts_a_simulation(small_store, tmp_path, fedlm_here):
    private = {"noise_seed": None, "delta": 1e-4}
    done = fedlm_here(*options(small_store, tmp_path / "private", steps=2, **private))
    assert done.returncode == 0, done.stderr
    summary, output = json.loads((tmp_path / "private" / "summary.json").read_text()), done.stdout
    guarantee = summary["privacy_guarantee"]
    assert 0 < guarantee["epsilon"] < 10
    assert guarantee["delta"] == 1e-4
    assert guarantee["unit"].startswith("example: one packed sequence of 8 tokens")
    assert "add-or-remove" in output
    ledger = PrivacyLedger(tmp_path / "private" / "privacy" / "ledger.jsonl")
    assert state(ledger).own.epsilon == pytest.approx(guarantee["epsilon"])
    assert oct((tmp_path / "private" / "privacy" / "noise-secret-0").stat().st_mode)[-3:] == "600"
    words = ["--model=cifg_tiny", f"--data={small_store}", "--rounds=1", "--cohort-size=3", "--length=8"]
    words += [f"--init-from={tmp_path / 'private'}", f"--out={tmp_path / 'simulated'}"]
    done = fedlm_here("simulate", *words)
    assert done.returncode == 0, done.stderr
    simulated = json.loads((tmp_path / "simulated" / "summary.json").read_text())
    assert simulated["initial_parameters"]["privacy"] == summary["privacy"]


@pytest.mark.long
def test_a_perplexity_that_is_no_finite_number_is_said(small_store, tmp_path, fedlm_here):
    """The loss is one still, and the exponential of it is not."""
    loud = {"optimizer": "sgd", "learning_rate": 1.0, "noise_multiplier": 40.0, "delta": 1e-3, "evaluate_every": 6}
    done = fedlm_here(*options(small_store, tmp_path / "run", **loud))
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["test_perplexity"] is None
    assert summary["test_loss"] > 710
    assert "test perplexity no finite number, test accuracy 0." in done.stdout
