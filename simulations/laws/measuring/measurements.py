"""What trainings of a grid measured: the loss of every block of steps, in one table."""

import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.json_text import json_text

MEASUREMENTS_FILE = "measurements.parquet"
"""In the folder of a grid's results."""
_FINITE_OR_NAN = ("loss_error", "gradient_noise_scale", "heldout_loss")
UNKNOWN: dict[str, Any] = {"training_examples": 0, "heldout_loss": math.nan}
"""What stands in columns that a table need not have."""
_TASK = b"fedlm task"
_AT_LEAST = {
    **{"parameters": 1, "non_embedding_parameters": 0, "learning_rate": 0, "noise_batch_ratio": 0, "batch_size": 1},
    **{"length": 1, "steps": 1, "seed": 0, "step": 1, "training_examples": 0},
}


@dataclass(frozen=True)
class Measurements:
    """Trainings, a row a block of steps: arrays of one length.

    Attributes:
      model: object [rows], the model's name.
      parameters: int64 [rows], all of the model's parameters.
      non_embedding_parameters: int64 [rows], those that are in no table of embeddings.
      learning_rate: float64 [rows], the highest of the run's schedule.
      noise_batch_ratio: float64 [rows], standard deviation of the noise on a step's mean gradient, in clip norms; 0
        without noise.
      batch_size: int64 [rows], examples of a step.
      length: int64 [rows], tokens that the model reads of an example.
      steps: int64 [rows], T of the run's schedule.
      seed: int64 [rows], root seed of the run.
      step: int64 [rows], how many steps were taken when the block ended.
      loss: float64 [rows], in training, nats per predicted token, mean over the block.
      loss_error: float64 [rows], its standard error; NaN where it is not known.
      gradient_noise_scale: float64 [rows], in examples; NaN where it was not measured.
      training_examples: int64 [rows], how many different ones the run had; 0 where that is not known.
      heldout_loss: float64 [rows], at the end of the block, nats per predicted token; NaN where it was not measured.

    Raises:
      ValueError: the arrays are not of one length.
    """

    model: NDArray[np.object_]
    parameters: NDArray[np.int64]
    non_embedding_parameters: NDArray[np.int64]
    learning_rate: NDArray[np.float64]
    noise_batch_ratio: NDArray[np.float64]
    batch_size: NDArray[np.int64]
    length: NDArray[np.int64]
    steps: NDArray[np.int64]
    seed: NDArray[np.int64]
    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    loss_error: NDArray[np.float64]
    gradient_noise_scale: NDArray[np.float64]
    training_examples: NDArray[np.int64] = None  # type: ignore[assignment]
    heldout_loss: NDArray[np.float64] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, unknown in UNKNOWN.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(len(self.model), unknown))
        lengths = {name: len(column) for name, column in self.columns().items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"columns have different lengths: {lengths}")

    def __len__(self) -> int:
        return len(self.model)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def where(self, mask: NDArray[Any]) -> Self:
        """Keep some rows: those of a bool mask, or of indices in their order."""
        return type(self)(**{name: column[mask] for name, column in self.columns().items()})

    def joined(self, others: Sequence["Measurements"]) -> "Measurements":
        """Put the rows of others after these."""
        tables = [table.columns() for table in (self, *others)]
        return Measurements(**{name: np.concatenate([table[name] for table in tables]) for name in tables[0]})


_SCHEMA = pa.schema(
    [
        pa.field("model", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("parameters", "non_embedding_parameters")),
        *(pa.field(name, pa.float64()) for name in ("learning_rate", "noise_batch_ratio")),
        *(pa.field(name, pa.int64()) for name in ("batch_size", "length", "steps", "seed", "step")),
        *(pa.field(name, pa.float64()) for name in ("loss", "loss_error", "gradient_noise_scale")),
        pa.field("training_examples", pa.int64()),
        pa.field("heldout_loss", pa.float64()),
    ]
)
INTEGERS = {field.name for field in _SCHEMA if pa.types.is_integer(field.type)}
"""Names of columns of whole numbers."""


def make_measurements(**columns: Any) -> Measurements:
    """Make measurements of columns of any kind that has their values; single values stand for all rows, and columns of
    `UNKNOWN` may be left out."""
    columns = UNKNOWN | columns
    rows = max((len(column) for column in columns.values() if np.ndim(column)), default=1)
    types = {
        field.name: object if pa.types.is_string(field.type) else field.type.to_pandas_dtype() for field in _SCHEMA
    }
    return Measurements(**{name: np.broadcast_to(np.asarray(columns[name], types[name]), rows) for name in types})


def write_measurements(measurements: Measurements, path: Path, task: Mapping[str, Any] | None = None) -> None:
    """Write measurements as Parquet, beside the file's place, and rename it. Raises DiskError where that fails.

    Args:
      measurements: to write.
      path: of the file.
      task: settings of what was trained, kept in the file; None where they are not known, or lie beside it.
    """
    buffer = io.BytesIO()
    table = pa.table(
        {name: pa.array(column, _SCHEMA.field(name).type) for name, column in measurements.columns().items()}
    )
    if task is not None:
        table = table.replace_schema_metadata({_TASK: json_text(task, default=str).encode()})
    pq.write_table(table, buffer, compression="zstd")
    write_atomically(path, buffer.getvalue())


def read_task(path: Path) -> dict[str, Any] | None:
    """Read the task that `write_measurements` kept in a file of measurements; None where there is none."""
    try:
        return json.loads((pq.read_schema(path).metadata or {})[_TASK])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None


def measurements_file(path: Path) -> Path:
    """Return the file of measurements that a path names: of a results' folder, the one in it."""
    return path / MEASUREMENTS_FILE if path.is_dir() else path


def read_measurements(path: Path) -> Measurements:
    """Read what `write_measurements` wrote. Raises DataError where a file, column or value is not as it must be."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}), expected measurements of `fedlm laws "
            "run` or `fedlm laws import`. Give such a file."
        ) from error
    for name, unknown in UNKNOWN.items():
        if name not in table.schema.names:
            table = table.append_column(_SCHEMA.field(name), pa.array([unknown] * len(table), _SCHEMA.field(name).type))
    for field in _SCHEMA:
        if table.schema.names.count(field.name) != 1:
            found = ", ".join(table.schema.names)
            raise DataError(
                f"{path}: found the columns {found}, expected one {field.name!r}. Measure or import it again."
            )
        if (column := table.column(field.name)).type != field.type:
            raise DataError(f"{path}: column {field.name!r} is of type {column.type}, expected {field.type}.")
        if column.null_count:
            row = column.to_pylist().index(None) + 1
            raise DataError(f"{path}, row {row}: column {field.name!r} is empty, expected a value.")
    measurements = make_measurements(**{name: table.column(name).to_numpy() for name in _SCHEMA.names})
    check_values(measurements, f"{path}, row", 1)
    return measurements


def check_values(measurements: Measurements, source: str, first_row: int) -> None:
    """Refuse numbers that no training measures.

    Args:
      measurements: of any source.
      source: what the first words of the error are; the number of the row follows.
      first_row: the number of the first row.

    Raises:
      DataError: there is one.
    """
    for name, least in _AT_LEAST.items():
        column = getattr(measurements, name)
        _refuse(
            ~(np.isfinite(column) & (column >= least)),
            column,
            f"at least {least}",
            name=name,
            source=source,
            first=first_row,
        )
    known = np.isfinite(measurements.loss) & (measurements.loss > 0)
    _refuse(~known, measurements.loss, "a finite number above 0", name="loss", source=source, first=first_row)
    for name in _FINITE_OR_NAN:
        column = getattr(measurements, name)
        _refuse(
            np.isinf(column),
            column,
            "a finite number, or NaN where it is not known",
            name=name,
            source=source,
            first=first_row,
        )
    beyond = measurements.step > measurements.steps
    _refuse(beyond, measurements.step, "at most the run's steps", name="step", source=source, first=first_row)


def _refuse(
    wrong: NDArray[np.bool_], column: NDArray[Any], expected: str, *, name: str, source: str, first: int
) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{source} {row + first}: {name} is {column[row]}, expected {expected}.")
