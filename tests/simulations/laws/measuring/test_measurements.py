"""Tables of measurements: what is written is read, and what no training measures is refused."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.measuring.measurements import (
    Measurements,
    make_measurements,
    read_measurements,
    write_measurements,
)


def some() -> Measurements:
    return make_measurements(
        model=["small", "large"],
        parameters=[1000, 3000],
        non_embedding_parameters=[500, 2000],
        learning_rate=2.0**-7,
        noise_batch_ratio=[0.0, 2.0**-10],
        batch_size=32,
        length=16,
        steps=64,
        seed=0,
        step=[32, 64],
        loss=[3.5, 3.25],
        loss_error=[0.01, np.nan],
        gradient_noise_scale=[np.nan, 12.5],
    )


def same(one: Measurements, other: Measurements) -> bool:
    for name, column in one.columns().items():
        np.testing.assert_array_equal(column, getattr(other, name), strict=True)
    return True


def test_what_is_written_is_read(tmp_path):
    write_measurements(some(), tmp_path / "m.parquet")
    assert same(read_measurements(tmp_path / "m.parquet"), some())
    assert [path.name for path in tmp_path.iterdir()] == ["m.parquet"]


def test_rows_are_kept_and_joined():
    halves = [some().where(np.array(mask)) for mask in ([True, False], [False, True])]
    assert [len(half) for half in halves] == [1, 1]
    assert same(halves[0].joined(halves[1:]), some())


def test_columns_of_different_lengths_are_refused():
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
    pq.write_table(table.drop_columns("loss"), path)
    with pytest.raises(DataError, match="expected one 'loss'"):
        read_measurements(path)
    pq.write_table(table.set_column(3, "learning_rate", pa.array(["a", "b"])), path)
    with pytest.raises(DataError, match="column 'learning_rate' is of type string, expected double"):
        read_measurements(path)
    pq.write_table(table.set_column(10, "loss", pa.array([1.0, None])), path)
    with pytest.raises(DataError, match="row 2: column 'loss' is empty"):
        read_measurements(path)
