"""Tables of measurements, and what is taken in from tables of others and from federated runs."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlm import DataInMemory, simulate
from fedlm.commands.cli import main
from fedlm.fl_core.errors import DataError, UserError
from fedlm.simulations.laws.fit import task_of
from fedlm.simulations.laws.measuring.imported_runs import import_runs
from fedlm.simulations.laws.measuring.imported_tables import PUBLISHED_MODELS, import_measurements
from fedlm.simulations.laws.measuring.measurements import (
    Measurements,
    make_measurements,
    read_measurements,
    write_measurements,
)
from tests.simulations.laws.recorded_runs import recorded_run


def some() -> Measurements:
    return make_measurements(
        **{"model": ["small", "large"], "parameters": [1000, 3000], "non_embedding_parameters": [500, 2000]},
        **{"learning_rate": 2.0**-7, "noise_batch_ratio": [0.0, 2.0**-10], "batch_size": 32, "length": 16, "steps": 64},
        **{"seed": 0, "step": [32, 64], "loss": [3.5, 3.25], "loss_error": [0.01, np.nan]},
        gradient_noise_scale=[np.nan, 12.5],
    )


def same(one: Measurements, other: Measurements) -> bool:
    for name, column in one.columns().items():
        np.testing.assert_array_equal(column, getattr(other, name), strict=True)
    return True


def test_what_is_written_is_read_and_rows_are_kept_and_joined(tmp_path):
    write_measurements(some(), tmp_path / "m.parquet")
    assert same(read_measurements(tmp_path / "m.parquet"), some())
    assert [path.name for path in tmp_path.iterdir()] == ["m.parquet"]
    halves = [some().where(np.array(mask)) for mask in ([True, False], [False, True])]
    assert [len(half) for half in halves] == [1, 1]
    assert same(halves[0].joined(halves[1:]), some())
    with pytest.raises(ValueError, match="different lengths"):
        dataclasses.replace(some(), loss=np.zeros(3))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", -3.0, "row 2: loss is -3.0, expected a finite number above 0"),
        ("loss", np.nan, "row 2: loss is nan, expected a finite number"),
        ("gradient_noise_scale", np.inf, "row 2: gradient_noise_scale is inf"),
        ("noise_batch_ratio", -0.5, "row 2: noise_batch_ratio is -0.5, expected at least 0"),
        ("step", 65, "row 2: step is 65, expected at most the run's steps"),
    ],
)
def test_what_no_training_measures_is_refused(tmp_path, name, value, message):
    column = getattr(some(), name).copy()
    column[1] = value
    write_measurements(dataclasses.replace(some(), **{name: column}), tmp_path / "m.parquet")
    with pytest.raises(DataError, match=message):
        read_measurements(tmp_path / "m.parquet")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "m.parquet"
    path.write_text("no table")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_measurements(path)
    write_measurements(some(), path)
    table = pq.read_table(path)
    for other, message in (
        (table.drop_columns("loss"), "expected one 'loss'"),
        (
            table.set_column(3, "learning_rate", pa.array(["a", "b"])),
            "'learning_rate' is of type string, expected doub",
        ),
        (table.set_column(10, "loss", pa.array([1.0, None])), "row 2: column 'loss' is empty"),
    ):
        pq.write_table(other, path)
        with pytest.raises(DataError, match=message):
            read_measurements(path)


PUBLISHED = """,Model,Learning Rate,Iterations,Noise Batch Ratio,Cross Entropy
0,BertTiny,0.0078125,100,0.0,7.5
1,BertTiny,0.0078125,200,0.0,7.25
2,BertMega,0.00390625,200,0.015625,9
"""


def table(tmp_path, text):
    path = tmp_path / "results.csv"
    path.write_text(text)
    return path


def test_the_published_columns_are_read(tmp_path):
    found = import_measurements(table(tmp_path, PUBLISHED))
    assert found.model.tolist() == ["BertTiny", "BertTiny", "BertMega"]
    assert found.parameters.tolist() == [4_500_000, 4_500_000, 778_000_000]
    assert found.step.tolist() == [100, 200, 200]
    assert found.loss.tolist() == [7.5, 7.25, 9.0]
    assert found.noise_batch_ratio.tolist() == [0, 0, 2.0**-6]
    assert set(zip(found.steps, found.batch_size, found.length, found.seed, strict=True)) == {(200, 1024, 512, 0)}
    assert np.isnan(found.loss_error).all()
    write_measurements(found, tmp_path / "m.parquet")
    assert len(read_measurements(tmp_path / "m.parquet")) == 3


def test_parameters_without_embeddings_are_about_those_of_the_layers(tmp_path):
    """12 layers width^2 leaves out biases, layer norms and the output's transform."""
    for name, published in (("BertTiny", 0.39e6), ("BertBase", 84.9e6), ("BertLarge", 302e6)):
        found = import_measurements(table(tmp_path, PUBLISHED.replace("BertMega", name)))
        assert published < found.non_embedding_parameters[2] < 1.07 * published
        assert found.parameters[2] == PUBLISHED_MODELS[name][0]
    with pytest.raises(DataError, match=r"nothing\.csv: cannot be read"):
        import_measurements(tmp_path / "nothing.csv")


def test_our_columns_are_read(tmp_path):
    values = {"model": "mine", "learning_rate": 0.5, "step": 10, "noise_batch_ratio": 0, "loss": 3, "seed": 7}
    values |= {"loss_error": 0.25, "parameters": 90, "non_embedding_parameters": 60}
    text = ",".join(values) + "\n" + ",".join(map(str, values.values())) + "\n"
    columns = import_measurements(table(tmp_path, text), 8, 16, 20).columns()
    for name, value in (values | {"batch_size": 8, "length": 16, "steps": 20, "training_examples": 0}).items():
        assert columns[name].tolist() == [value]
    assert np.isnan([columns["gradient_noise_scale"], columns["heldout_loss"]]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Cross Entropy", "Loss"), "has no column for loss; expected .* 'Cross Entropy' or 'loss'"),
        (("7.25", "low"), "line 3: loss is 'low', expected a number"),
        (("7.25", "-inf"), "line 3: loss is -inf, expected a finite number"),
        (("7.25", ""), "line 3: loss is None, expected a number"),
        (("200,0.0,7.25", "200.5,0.0,7.25"), "line 3: step is 200.5, expected a whole number"),
        (("BertMega", "BertHuge"), "line 4: the parameters of the model 'BertHuge' are not known; give columns"),
        (("0.015625", "-1"), "line 4: noise_batch_ratio is -1.0, expected at least 0"),
        (("Iterations", "step,Iterations"), "cannot be read|'step' twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_line(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        import_measurements(table(tmp_path, PUBLISHED.replace(*change)))


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


def test_the_command_writes_measurements_that_keep_their_task_and_name_no_place(tmp_path, capsys):
    recorded_run(tmp_path / "runs" / "a", noise=3.0)
    recorded_run(tmp_path / "runs" / "b", client_learning_rate=0.25)
    out = tmp_path / "measurements.parquet"
    assert main(["laws", "import", str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert "16 measurements of 1 models" in capsys.readouterr().out
    found = read_measurements(out)
    assert found.step.tolist() == [*range(1, 9)] * 2
    task = task_of(out, found)
    said = {"command": "simulate", "privacy": "tree", "learning_rate": "client_learning_rate"}
    said |= {"server_learning_rate": 0.01, "update_clip_norm": 0.5}
    assert said.items() <= task.items()
    assert not {"data", "seed", "rounds", "model", "init_from"} & task.keys()
    for words, message in (
        ([str(tmp_path / "runs"), "--length", "8"], "length does nothing with federated runs"),
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
