"""The record of a run, one JSON line a round, and the same numbers as TensorBoard events."""

import json
import math
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from fl_core.atomic_files import write_atomically


class MetricsLog:
    """Appends rows to `metrics.jsonl` and to `tensorboard/`; a context manager."""

    def __init__(self, directory: Path, first_round: int, counter: str = "round"):
        """Open the record, forgetting rows of rounds that will be run again.

        Args:
          directory: of the run.
          first_round: the round that runs next; rows from this one on were written after the checkpoint that is
            resumed from.
          counter: the name under which a row has its round.
        """
        self._counter = counter
        self._path = directory / "metrics.jsonl"
        self.rows = [row for row in read_rows(self._path) if row[counter] < first_round]
        write_atomically(self._path, "".join(_line(row) for row in self.rows))
        self._file = self._path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(directory / "tensorboard"), purge_step=first_round, write_to_disk=True)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._events.close()

    def append(self, row: dict[str, Any]) -> None:
        """Record a round.

        Args:
          row: JSON-able numbers by name, with the counter among them. A number that is not finite is written as null.
        """
        row = finite_row(row)
        self.rows.append(row)
        self._file.write(_line(row))
        self._file.flush()
        for name, value in row.items():
            if name != self._counter and value is not None:
                self._events.add_scalar(name, value, row[self._counter])


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a record; a last line that a killed process left unfinished is passed over.

    Args:
      path: of a `metrics.jsonl`, which need not exist.

    Returns:
      The rows.
    """
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def finite_row(row: dict[str, Any]) -> dict[str, Any]:
    """Replace the numbers of a row that JSON cannot hold.

    Args:
      row: numbers by name.

    Returns:
      The row with None for each NaN and infinity.
    """
    return {name: finite_or_none(value) for name, value in row.items()}


def finite_or_none(value: Any) -> Any:
    """Replace a float that JSON cannot hold by None.

    Args:
      value: anything.

    Returns:
      None for NaN and infinities, else the value.
    """
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"
