"""`fedlm pretrain` in real processes: killed and resumed, in two processes, and as a start for `fedlm simulate`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedlm.fl_core.privacy.ledger import PrivacyLedger
from tests.support.processes import ENVIRONMENT, find_free_port, finish, rows_of

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
    return [f"--{name}={value}" for name, value in settings.items() if value is not None]


def start(store, out, *more, **changes):
    return subprocess.Popen(
        [sys.executable, "-m", "fedlm", "pretrain", *options(store, out, **changes), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def run(store, out, *more, **changes):
    status, output, errors = finish(start(store, out, *more, **changes))
    assert status == 0, errors
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


BANDED = {"mechanism": "banded", "bands": 3}
"""Noise of a step cancels that of steps before the checkpoint."""


@pytest.fixture(scope="module")
def whole_banded(small_store, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole_banded")
    return *run(small_store, out, **BANDED), out


@pytest.mark.thorough
def test_banded_noise_goes_on_where_it_was_when_killed(small_store, whole_banded, tmp_path):
    process = start(small_store, tmp_path, **BANDED)
    while not (tmp_path / "checkpoints" / "2").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "summary.json").exists()
    summary, _ = run(small_store, tmp_path, **BANDED)
    assert summary["parameters_sha256"] == whole_banded[0]["parameters_sha256"]
    plan = PrivacyLedger(tmp_path / "privacy" / "ledger.jsonl").plan
    assert (plan.mechanism, len(plan.coefficients), plan.participation.cycle) == ("banded", 3, 3)


@pytest.mark.thorough
def test_banded_noise_is_the_same_in_two_processes(small_store, whole_banded, tmp_path):
    alone, _ = run(small_store, tmp_path / "alone", devices=4, **BANDED)
    group = [f"--coordinator=127.0.0.1:{find_free_port()}", "--num-processes=2"]
    changes = {"devices": 2, **BANDED}
    both = [start(small_store, tmp_path / "two", *group, f"--process-id={number}", **changes) for number in range(2)]
    results = [finish(process) for process in both]
    assert [status for status, *_ in results] == [0, 0], results
    two = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert two["parameters_sha256"] == alone["parameters_sha256"] == whole_banded[0]["parameters_sha256"]


@pytest.mark.long
def test_killed_and_resumed_gives_the_same_parameters(small_store, whole, tmp_path):
    process = start(small_store, tmp_path)
    while not (tmp_path / "checkpoints" / "2").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "summary.json").exists()
    summary, _ = run(small_store, tmp_path)
    assert summary["parameters_sha256"] == whole[0]["parameters_sha256"]
    without_time = [{name: row[name] for name in row if name not in TIMES} for row in rows_of(tmp_path)]
    assert without_time == [{name: row[name] for name in row if name not in TIMES} for row in rows_of(whole[1])]


TIMES = ("seconds", "tokens_per_second", "mfu")


@pytest.mark.long
def test_two_processes_give_the_same_parameters_as_one(small_store, tmp_path):
    alone, _ = run(small_store, tmp_path / "alone", devices=2, noise_seed="experiment")
    group = [f"--coordinator=127.0.0.1:{find_free_port()}", "--num-processes=2"]
    both = [start(small_store, tmp_path / "two", *group, f"--process-id={number}") for number in range(2)]
    results = [finish(process) for process in both]
    assert [status for status, *_ in results] == [0, 0], results
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["machine"]["processes"] == 2
    assert summary["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["full", pytest.param("data", marks=pytest.mark.thorough)])
def test_adapters_are_the_same_on_any_number_of_devices_and_in_two_processes(small_store, tmp_path, sharding):
    """Also where what is frozen is spread over the devices, and what is dropped is drawn in another process."""
    run(small_store, tmp_path / "base", steps=1, privacy="none", noise_multiplier=None, noise_seed=None)
    lora = {"init_from": tmp_path / "base", "lora_rank": 2, "lora_dropout": 0.25, "steps": 4}
    alone, _ = run(small_store, tmp_path / "alone", **lora)
    assert alone["trained_parameters"] < alone["parameters"]
    spread, _ = run(small_store, tmp_path / "spread", sharding="full", **lora | {"devices": 4})
    out = tmp_path / "two"
    group = [f"--coordinator=127.0.0.1:{find_free_port()}", "--num-processes=2"]
    changes = lora | {"devices": 2, "sharding": sharding}
    both = [start(small_store, out, *group, f"--process-id={number}", **changes) for number in range(2)]
    results = [finish(process) for process in both]
    assert [status for status, *_ in results] == [0, 0], results
    summary = json.loads((out / "summary.json").read_text())
    assert summary["machine"]["processes"] == 2
    found = [spread["parameters_sha256"], summary["parameters_sha256"]]
    assert found == 2 * [alone["parameters_sha256"]]


PRIVATE = {"noise_multiplier": None, "noise_seed": None, "epsilon": 3, "delta": 1e-4}


@pytest.mark.long
def test_a_private_run_that_is_killed_spends_no_more_than_planned(small_store, tmp_path):
    process = start(small_store, tmp_path, **PRIVATE)
    while not (tmp_path / "checkpoints" / "2").exists() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    summary, _ = run(small_store, tmp_path, **PRIVATE)
    assert summary["privacy_guarantee"]["epsilon"] <= 3
    spent = PrivacyLedger(tmp_path / "privacy" / "ledger.jsonl").spent()
    assert spent.epsilon == pytest.approx(summary["privacy_guarantee"]["epsilon"])
    stated = {name: summary["privacy_guarantee"][name] for name in ("epsilon", "delta", "unit", "adjacency")}
    assert stated.items() <= rows_of(tmp_path)[-1].items()


@pytest.mark.long
def test_a_private_run_says_what_it_spent_and_starts_a_simulation(small_store, tmp_path, fedlm_here):
    private = {"noise_seed": None, "delta": 1e-4}
    done = fedlm_here("pretrain", *options(small_store, tmp_path / "private", steps=2, **private))
    assert done.returncode == 0, done.stderr
    summary, output = json.loads((tmp_path / "private" / "summary.json").read_text()), done.stdout
    guarantee = summary["privacy_guarantee"]
    assert 0 < guarantee["epsilon"] < 10
    assert guarantee["delta"] == 1e-4
    assert guarantee["unit"].startswith("example: one packed sequence of 8 tokens")
    assert "add-or-remove" in output
    ledger = PrivacyLedger(tmp_path / "private" / "privacy" / "ledger.jsonl")
    assert ledger.spent().epsilon == pytest.approx(guarantee["epsilon"])
    assert oct((tmp_path / "private" / "privacy" / "noise-secret-0").stat().st_mode)[-3:] == "600"
    words = ["--model=cifg_tiny", f"--data={small_store}", "--rounds=1", "--cohort-size=3", "--length=8"]
    words += [f"--init-from={tmp_path / 'private'}", f"--out={tmp_path / 'simulated'}"]
    done = fedlm_here("simulate", *words)
    assert done.returncode == 0, done.stderr
    simulated = json.loads((tmp_path / "simulated" / "summary.json").read_text())
    assert simulated["initial_parameters"]["privacy"] == summary["privacy"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"noise_multiplier": None},
            "exactly one of --epsilon, --noise-multiplier and --noise-batch-ratio, not none; or --privacy none",
        ),
        ({"schedule": "exponential"}, "needs a --final-learning-rate above 0"),
        ({"final_learning_rate": 1e-4}, "does nothing with the schedule constant"),
        ({"privacy": "none"}, "privacy is none, but --noise-multiplier is set"),
        ({"batch_size": 10**6}, "units"),
        ({"bands": 2}, "bands does nothing with the mechanism gaussian"),
        ({"mechanism": "banded"}, "can only be chosen for an epsilon"),
        ({"mechanism": "banded", "bands": 7}, "between 1 and 6"),
        ({"mechanism": "banded", "bands": 2, "sampling": "truncated_poisson"}, "give the adjacency zero_out"),
        ({"mechanism": "banded", "privacy": "none", "noise_multiplier": None}, "but --mechanism is banded"),
        ({"truncated_batch_size": 20}, "does nothing with the sampling poisson"),
        ({"weight_decay": 0.5}, "does nothing with the optimizer adam"),
        ({"warmup_steps": 6}, "--warmup-steps is 6"),
        ({"model": "bert_tiny", "length": 600}, "length 600"),
        ({"sequences_per_unit": 3}, "--sequences-per-unit"),
    ],
)
def test_mistakes_are_one_line(small_store, tmp_path, fedlm_here, changes, expected):
    result = fedlm_here("pretrain", *options(small_store, tmp_path, **changes))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert expected in result.stderr.splitlines()[-1]
    assert not os.path.exists(tmp_path / "summary.json")


@pytest.mark.long
def test_a_perplexity_that_is_no_finite_number_is_said(small_store, tmp_path, fedlm_here):
    """The loss is one still, and the exponential of it is not."""
    loud = {"optimizer": "sgd", "learning_rate": 1.0, "noise_multiplier": 40.0, "delta": 1e-3, "evaluate_every": 6}
    done = fedlm_here("pretrain", *options(small_store, tmp_path / "run", **loud))
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["test_perplexity"] is None
    assert summary["test_loss"] > 710
    assert "test perplexity no finite number, test accuracy 0." in done.stdout
