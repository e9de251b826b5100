"""Measurements that were made elsewhere, from tables of comma-separated values."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.models.base import parameter_count
from fedlm.models.registry import create_model
from fedlm.simulations.laws.measuring.cell import non_embedding_parameters
from fedlm.simulations.laws.measuring.measurements import INTEGERS, Measurements, check_values, make_measurements

PUBLISHED_COLUMNS = {
    "Model": "model",
    "Learning Rate": "learning_rate",
    "Iterations": "step",
    "Noise Batch Ratio": "noise_batch_ratio",
    "Cross Entropy": "loss",
}
"""From the columns of McKenna et al. 2025's results to ours."""
PUBLISHED_MODELS = {
    "BertTiny": (4_500_000, "bert_tiny"),
    "BertMini": (11_400_000, "bert_mini"),
    "BertSmall": (29_000_000, "bert_small"),
    "BertMedium": (41_000_000, "bert_medium"),
    "BertBase": (109_000_000, "bert_base"),
    "BertLarge": (335_000_000, "bert_large"),
    "BertMega": (778_000_000, "bert_mega"),
}
"""Their models: the parameters that they count, and ours of the same shape."""
_NEEDED = tuple(PUBLISHED_COLUMNS.values())
_FIRST_ROW = 2  # of the data, where the header is line 1


def import_measurements(
    path: Path, batch_size: int = 1024, length: int = 512, steps: int | None = None
) -> Measurements:
    """Read a table with the columns Model, Learning Rate, Iterations, Noise Batch Ratio and Cross Entropy, or with our
    names; columns of ours that it has besides are read too.

    Args:
      path: a CSV file with a header.
      batch_size: examples of a step, where there is no such column; and so the others.
      length: tokens of an example.
      steps: of a run's schedule; the largest number of steps that was measured where None.

    Raises:
      DataError: the file cannot be read, a column is missing, a value is not as it must be, or a model's parameters are
        neither in the file nor known.
    """
    table = _read_table(path)
    if missing := [name for name in _NEEDED if name not in table]:
        expected = ", ".join(f"{theirs!r} or {ours!r}" for theirs, ours in PUBLISHED_COLUMNS.items())
        raise DataError(f"{path}: has no column for {', '.join(missing)}; expected {expected}.")
    models = table.pop("model").to_pylist()
    if None in models:
        raise DataError(f"{path}, line {models.index(None) + _FIRST_ROW}: model is empty, expected a name.")
    columns = {name: _numbers(column, name, path) for name, column in table.items()}
    if not {"parameters", "non_embedding_parameters"} <= columns.keys():
        columns = dict(zip(("parameters", "non_embedding_parameters"), _counts(models, path), strict=True)) | columns
    largest = int(columns["step"].max(initial=1))
    given = {"batch_size": batch_size, "length": length, "steps": steps or largest, "seed": 0}
    unknown = {"loss_error": np.nan, "gradient_noise_scale": np.nan}
    measurements = make_measurements(model=np.array(models, object), **unknown | given | columns)
    check_values(measurements, f"{path}, line", _FIRST_ROW)
    return measurements


def _read_table(path: Path) -> dict[str, pa.ChunkedArray]:
    """Read the columns of ours, by name."""
    try:
        table = pacsv.read_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read ({str(error).splitlines()[0]}), expected comma-separated values with a header."
        ) from error
    found: dict[str, pa.ChunkedArray] = {}
    known = {field.name for field in dataclasses.fields(Measurements)}
    for column in table.column_names:
        name = PUBLISHED_COLUMNS.get(column, column)
        if name in found or table.column_names.count(column) > 1:
            raise DataError(f"{path}: has the column {name!r} twice, expected it once.")
        if name in known:
            found[name] = table.column(column)
    return found


def _numbers(column: pa.ChunkedArray, name: str, path: Path) -> NDArray[Any]:
    """Read a column of numbers; those of whole ones must be whole."""
    whole = name in INTEGERS
    values = []
    for line, value in enumerate(column.to_pylist(), _FIRST_ROW):
        try:
            values.append(float(value))
        except (TypeError, ValueError):
            raise DataError(f"{path}, line {line}: {name} is {value!r}, expected a number.") from None
        if whole and not values[-1].is_integer():
            raise DataError(f"{path}, line {line}: {name} is {value!r}, expected a whole number.")
    return np.array(values, np.int64 if whole else np.float64)


def _counts(models: list[str], path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the parameters of each row's model: all, and those that are in no embedding."""
    counts = {}
    for model in dict.fromkeys(models):
        total, name = PUBLISHED_MODELS.get(model, (None, model))
        try:
            ours = create_model(name)
        except ConfigurationError as error:
            raise DataError(
                f"{path}, line {models.index(model) + _FIRST_ROW}: the parameters of the model {model!r} are not "
                "known; give columns 'parameters' and 'non_embedding_parameters'."
            ) from error
        counts[model] = (total or parameter_count(ours), non_embedding_parameters(ours))
    all_of_them, others = (np.array([counts[model][place] for model in models], np.int64) for place in (0, 1))
    return all_of_them, others
