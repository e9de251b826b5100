"""What was measured, in one file that grows with each training."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.architectures.axes.points import Run, window
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import CheckpointError

DIVERGED = "diverged"
_COMPARED = ("protocol", "data")


class Records:
    """The file.

    Attributes:
      about: `machine` with versions, `protocol` and `data`; JSON-able.
      runs: of each training what `training.train` found after its last rounds so far; JSON-able.
    """

    def __init__(self, path: Path, about: dict[str, Any] | None = None):
        """Read a file, or begin one where there is none.

        Args:
          about: of what is measured now; None to read only.

        Raises:
          CheckpointError: what is there was measured with another protocol, or on other data.
        """
        self.path, self.about = path, about or {}
        self.runs: dict[Run, dict[str, Any]] = {}
        if not path.exists():
            if about is None:
                raise CheckpointError(f"{path}: there is no such file; train first")
            return
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            found = {part: record["about"][part] for part in _COMPARED}
            self.runs = {Run.of_json(run): run for run in record["runs"]}
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{path}: is no record of trainings ({type(error).__name__}: {error}); mend it, or give another "
                "--results"
            ) from error
        if about is not None:
            self._check(found, about)
            record["about"]["data"] |= about["data"]
        self.about = record["about"]

    def _check(self, found: dict[str, Any], about: dict[str, Any]) -> None:
        for part in _COMPARED:
            other = [name for name in found[part] if found[part][name] != about[part].get(name, found[part][name])]
            if other:
                raise CheckpointError(
                    f"{self.path}: was measured with another {part} ({', '.join(other)}: "
                    f"{[found[part][name] for name in other]} and not {[about[part][name] for name in other]}); give "
                    "another --results"
                )

    def add(self, run: Run, found: dict[str, Any]) -> None:
        """Keep what a training gave."""
        self.runs[run] = run.as_json() | found
        ordered = sorted(self.runs, key=lambda one: one.name)
        lines = ",\n".join(json.dumps(self.runs[one]) for one in ordered)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, f'{{"about": {json.dumps(self.about, indent=1)},\n"runs": [\n{lines}\n]}}\n')

    def has(self, run: Run, rounds: int) -> bool:
        """Say whether a training has come so far, or has diverged before."""
        found = self.runs.get(run)
        return found is not None and (found["rounds"] >= rounds or found["status"] == DIVERGED)

    def heldout_loss(self, run: Run, rounds: int) -> float:
        """Give the mean held-out loss over the last of a training's first so many rounds; infinite where it
        diverged."""
        return self._mean(run, rounds, "heldout", 1)

    def test_loss(self, run: Run, rounds: int) -> float:
        """Give the same of test clients."""
        return self._mean(run, rounds, "test", 1)

    def test_accuracy(self, run: Run, rounds: int) -> float:
        """Give the mean accuracy for test clients; 0 where it diverged."""
        return self._mean(run, rounds, "test", 2)

    def _mean(self, run: Run, rounds: int, kind: str, column: int) -> float:
        found = self.runs[run]
        rows = [row for row in found[kind] if rounds - window(rounds) < row[0] <= rounds]
        lost = found["status"] == DIVERGED and found["rounds"] < rounds
        if lost or not rows or any(row[column] is None for row in rows):
            return math.inf if column == 1 else 0.0
        return float(np.mean([row[column] for row in rows]))
