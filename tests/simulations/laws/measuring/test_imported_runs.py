"""Measurements of federated runs: what is recorded becomes rows, and runs that are not alike are refused."""

import json

import numpy as np
import pytest

from fedlm import DataInMemory, simulate
from fedlm.commands.cli import main
from fedlm.fl_core.errors import UserError
from fedlm.simulations.laws.fit import task_of
from fedlm.simulations.laws.measuring.imported_runs import import_runs
from fedlm.simulations.laws.measuring.measurements import read_measurements
from tests.simulations.laws.recorded_runs import recorded_run


def test_rounds_are_averaged_by_examples_and_noise_is_over_the_cohort(tmp_path):
    recorded_run(tmp_path / "quiet", losses=[5.0, 2.0, None, None, 4.0, 4.0, 3.0, 3.0])
    recorded_run(tmp_path / "noisy", noise=3.0, seed=1)
    found = import_runs([tmp_path, tmp_path / "noisy"], block_rounds=2)
    assert found.left_out == {}
    noisy, quiet = (found.measurements.where(found.measurements.noise_batch_ratio == ratio) for ratio in (0.75, 0))
    assert len(noisy) + len(quiet) == len(found.measurements)
    assert quiet.step.tolist() == [2, 6, 8]  # a block without a loss is none
    np.testing.assert_allclose(quiet.loss, [3.0, 4.0, 3.0])
    np.testing.assert_allclose(quiet.loss_error, [np.sqrt(2 * (4 / 9 + 4 / 9)), 0, 0])
    np.testing.assert_array_equal(quiet.heldout_loss, [np.nan, np.nan, 6.0])
    np.testing.assert_allclose(noisy.loss[:2], [4.75 + 0.25 / 3, 4.25 + 0.25 / 3])
    assert set(noisy.seed) == {1}
    shared = (noisy.batch_size, noisy.steps, noisy.length, noisy.parameters, noisy.learning_rate)
    assert [set(column) for column in shared] == [{4}, {8}, {6}, {13_536}, {0.01}]
    assert 0 < noisy.non_embedding_parameters[0] < 13_536


def test_the_task_says_what_the_runs_have_in_common_and_no_place(tmp_path):
    recorded_run(tmp_path / "a", noise=3.0)
    recorded_run(tmp_path / "b", client_learning_rate=0.25)
    task = import_runs([tmp_path]).task
    assert task["command"] == "simulate"
    assert task["privacy"] == "tree"
    assert task["learning_rate"] == "client_learning_rate"
    assert task["server_learning_rate"] == 0.01
    assert task["update_clip_norm"] == 0.5
    assert not {"data", "seed", "rounds", "model", "init_from"} & task.keys()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"client_epochs": 2}, "b: client_epochs is 2, but 1 in .*a; laws are of runs that differ in"),
        ({"privacy": "banded", "noise": 2.0}, "b: privacy is banded, but tree in"),
        ({"summary": {"training_data_sha256": "other"}}, "b: is of other data or another vocabulary"),
        ({"client_learning_rate": 0.1, "server_learning_rate": 0.1}, "differ in both learning rates"),
        ({"noise": 2.0, "report_goal": 3}, "b: report_goal is 3, but cohort_size 4"),
        ({"noise": 2.0, "clip_quantile": 0.5, "tree_restart_every": 4}, "b: its clip norm moves"),
        ({"noise": 2.0, "summary": {"noise_multiplier": None}}, "b: its summary has no noise_multiplier"),
    ],
)
def test_runs_that_are_not_alike_are_refused_by_folder(tmp_path, other, message):
    recorded_run(tmp_path / "a", noise=1.0)
    recorded_run(tmp_path / "b", **other)
    with pytest.raises(UserError, match=message):
        import_runs([tmp_path])


def test_runs_that_measure_nothing_are_left_out_and_named(tmp_path):
    recorded_run(tmp_path / "a", summary={"status": "diverged"})
    with pytest.raises(UserError, match=r"no run can be imported of 1; .*a: is diverged"):
        import_runs([tmp_path])
    recorded_run(tmp_path / "b")
    found = import_runs([tmp_path])
    assert list(found.left_out) == [tmp_path / "a"]
    assert len(found.measurements) == 8


def test_the_command_writes_measurements_that_keep_their_task(tmp_path, capsys):
    recorded_run(tmp_path / "runs" / "a", noise=3.0)
    out = tmp_path / "measurements.parquet"
    assert main(["laws", "import", str(tmp_path / "runs"), "--block-rounds", "4", "--out", str(out)]) == 0
    assert "2 measurements of 1 models" in capsys.readouterr().out
    assert read_measurements(out).step.tolist() == [4, 8]
    assert task_of(out, read_measurements(out))["privacy"] == "tree"
    for words, message in (
        ([str(tmp_path / "runs"), "--length", "8"], "length does nothing with federated runs"),
        (["table.csv", "--block-rounds", "8"], "--block-rounds does nothing with a table"),
        (["table.csv", str(tmp_path / "runs")], "but must be one table, or folders of runs"),
    ):
        assert main(["laws", "import", *words, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.thorough
def test_a_simulated_run_is_taken_in(tmp_path):
    data = DataInMemory.from_texts({f"user {n}": ["the cat sat"] for n in range(30)}, vocabulary_size=40)
    noise = {"privacy": "gaussian", "noise_multiplier": 0.01, "noise_seed": "experiment", "update_clip_norm": 1.0}
    simulate(
        **{"model": "transformer_1x32", "data": data, "out": tmp_path / "run", "rounds": 2, "cohort_size": 4},
        **{"cohort_sampler": "min_separation", "length": 6, "upload_bits": 32},
        **noise,
    )
    found = import_runs([tmp_path / "run"]).measurements
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(found.loss, [row["train_loss"] for row in rows])
    np.testing.assert_allclose(found.noise_batch_ratio, 0.0025)
    assert found.heldout_loss[-1] == rows[-1]["heldout_loss"]
