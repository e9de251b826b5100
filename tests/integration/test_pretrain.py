"""`fedlm pretrain` in real processes: killed and resumed, in two processes, and as a start for `fedlm simulate`."""

import json

import pytest

from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from tests.support.processes import begin, begin_two, finish_well, kill_once, rows_of

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


@pytest.fixture(scope="module")
def whole(small_store, tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    summary, output = run(small_store, out)
    return summary, out, output


@pytest.mark.long
def test_says_what_it_promises_and_what_not(whole, capsys):
    from fedlm.commands.cli import main

    summary, out, output = whole
    assert main(["account", "ledger", str(out)]) == 0
    assert "NOT PRIVATE" in capsys.readouterr().out
    assert summary["privacy"].startswith("NOT PRIVATE")
    assert "NOT PRIVATE" in output
    assert summary["steps"] == 6
    assert len(rows_of(out)) == 6
    assert summary["units"]["unit"] == "example"


@pytest.mark.long
def test_killed_and_resumed_gives_the_same_parameters(small_store, whole, tmp_path):
    kill_once(begin(*options(small_store, tmp_path)), (tmp_path / "checkpoints" / "2").exists)
    assert not (tmp_path / "summary.json").exists()
    summary, _ = run(small_store, tmp_path)
    assert summary["parameters_sha256"] == whole[0]["parameters_sha256"]
    without_time = [{name: row[name] for name in row if name not in TIMES} for row in rows_of(tmp_path)]
    assert without_time == [{name: row[name] for name in row if name not in TIMES} for row in rows_of(whole[1])]


TIMES = ("seconds", "tokens_per_second", "mfu")


def run_two(store, out, **changes):
    """Run in two processes; returns the summary."""
    finish_well(*begin_two(*options(store, out, **changes)))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["machine"]["processes"] == 2
    return summary


# That of adapters shows the same, and more.
@pytest.mark.thorough
def test_two_processes_give_the_same_parameters_as_one(small_store, tmp_path):
    alone, _ = run(small_store, tmp_path / "alone", devices=2)
    two = run_two(small_store, tmp_path / "two")
    assert two["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-4)


@pytest.mark.long
def test_adapters_are_the_same_on_any_number_of_devices_and_in_two_processes(small_store, tmp_path, fedlm_here):
    """Also where what is frozen is spread over the devices, and what is dropped is drawn in another process."""
    first = {"steps": 1, "privacy": "none", "noise_multiplier": None, "noise_seed": None}
    assert fedlm_here(*options(small_store, tmp_path / "base", **first)).returncode == 0
    lora = {"init_from": tmp_path / "base", "lora_rank": 2, "lora_dropout": 0.25, "steps": 4}
    alone, _ = run(small_store, tmp_path / "alone", **lora)
    assert alone["trained_parameters"] < alone["parameters"]
    two = run_two(small_store, tmp_path / "two", devices=2, sharding="full", **lora)
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
