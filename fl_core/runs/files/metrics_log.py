"""The record of a run, one JSON line a round, and the same numbers as TensorBoard events."""

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from fedlm.fl_core.atomic_files import append_whole, disk_errors, write_atomically
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.json_text import json_text

METRICS_FILE = "metrics.jsonl"
_FLUSHED_EVERY = 30.0


class MetricsLog:
    """Appends rows to `metrics.jsonl` and to `tensorboard/`; a context manager."""

    def __init__(self, directory: Path, first_round: int, counter: str = "round"):
        """Open the record, forgetting rows of rounds from the first on that will be run again. Raises DiskError where
        it cannot be written, and CheckpointError where it is damaged."""
        self._counter = counter
        self._path = directory / METRICS_FILE
        self.rows = [row for row in read_rows(self._path, counter) if row[counter] < first_round]
        write_atomically(self._path, "".join(_line(row) for row in self.rows))
        self._events_folder = directory / "tensorboard"
        with disk_errors(self._events_folder):
            self._events_folder.mkdir(exist_ok=True)
            # Without tensorboardX's thread: a full disk ends it, and what is written afterwards waits for it for ever.
            self._events = EventsWriter(str(self._events_folder / "events"))
            self._write_event(first_round, session_log=SessionLog(status=SessionLog.START))
        self._flushed = time.monotonic()
        self._file = self._path.open("r+b", buffering=0)
        self._end = self._path.stat().st_size

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        # They are the same numbers again, and what ends the run may be that the disk is full.
        with suppress(OSError):
            self._events.close()

    def append(self, row: dict[str, Any]) -> None:
        """Record a round; a number that is not finite is written as null. Raises DiskError where it cannot be
        written."""
        row = finite_row(row)
        with disk_errors(self._path):
            self._end = append_whole(self._file.fileno(), _line(row).encode(), self._end, synced=False)
        self.rows.append(row)
        shown = {name: value for name, value in row.items() if name != self._counter and value is not None}
        numbers = {name: float(value) for name, value in shown.items() if not isinstance(value, str)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        with disk_errors(self._events_folder):
            self._write_event(row[self._counter], summary=Summary(value=values))
            if time.monotonic() - self._flushed > _FLUSHED_EVERY:
                self._events.flush()
                self._flushed = time.monotonic()

    def _write_event(self, step: int, **content: Any) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, **content))


def read_rows(path: Path, counter: str | None = None) -> list[dict[str, Any]]:
    """Read a record, which need not exist; a last line that a killed process left unfinished is passed over.

    Args:
      path: of the record.
      counter: a name that each row must have, with a whole number.

    Raises:
      CheckpointError: another line is no row.
    """
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
            if number == len(lines):
                break
        if not isinstance(row, dict) or (counter is not None and not isinstance(row.get(counter), int)):
            raise CheckpointError(
                f"{path}: line {number} is no row of a run's metrics{f' by {counter}' if counter else ''}: "
                f"{line[:60]!r}; mend or remove the file, or give another {setting('out')}"
            )
        rows.append(row)
    return rows


def finite_row(row: dict[str, Any]) -> dict[str, Any]:
    """Replace each NaN and infinity of a row, which JSON cannot hold, by None."""
    return {name: finite_or_none(value) for name, value in row.items()}


def finite_or_none(value: Any) -> Any:
    """Replace NaN and infinities, which JSON cannot hold, by None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(row: dict[str, Any]) -> str:
    return json_text(row) + "\n"
