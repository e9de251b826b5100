"""What was measured, one JSON line each, on the disk before the next measurement begins.

A line is either a run (`kind` `run`: what was found, and how it was asked) or a cell of one (`kind` `cell`: group,
name, `status`, and with it `result` or `reason`). A line that a killed run left half-written is passed over.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

FILE = "results.jsonl"
RUN, CELL = "run", "cell"
_SAME = ("device", "device_count", "platform", "jax", "jaxlib")


class Results(NamedTuple):
    """What is known of one machine.

    Attributes:
      runs: of the same devices, the newest last.
      cells: by (group, name); of several runs the newest that measured it, or else the newest that tried.
    """

    runs: list[dict[str, Any]]
    cells: dict[tuple[str, str], dict[str, Any]]

    @property
    def run(self) -> dict[str, Any]:
        """The newest run."""
        return self.runs[-1]

    def measured(self, group: str) -> dict[str, dict[str, Any]]:
        """List the results of a group's cells by their names, of those that have any."""
        return {
            name: cell["result"]
            for (of, name), cell in self.cells.items()
            if of == group and cell["status"] == "measured"
        }


def append(folder: Path, record: dict[str, Any]) -> None:
    """Write a line, and wait until it is on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("ab") as file:
        # After a line that was cut off, a new one begins.
        if file.tell() and not _ends_a_line(folder / FILE):
            file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> Results | None:
    """Read the results of the newest run, and of earlier ones on the same devices with the same sizes; None where there
    are none."""
    runs: list[dict[str, Any]] = []
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for record in _lines(folder / FILE):
        if record.get("kind") == RUN:
            if runs and not same_machine(runs[-1], record):
                runs, cells = [], {}
            runs.append(record)
        elif record.get("kind") == CELL and runs:
            key = record["group"], record["name"]
            if record["status"] == "measured" or cells.get(key, {}).get("status") != "measured":
                cells[key] = record
    return Results(runs, cells) if runs else None


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the results of two runs may stand in one table."""
    same = all(one["found"].get(name) == other["found"].get(name) for name in _SAME)
    return same and one["rehearsal"] == other["rehearsal"]


def _lines(path: Path) -> list[dict[str, Any]]:
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
