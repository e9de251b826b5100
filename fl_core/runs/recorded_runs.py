"""What runs left in their folders, of any kind and however they ended: simulations, deployments, central training."""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE, settings_in
from fedlm.fl_core.privacy.origins.vocabulary_origin import may_be_of_several
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE, ONE_DOCUMENT
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.runs.endings import DIVERGED, FINISHED, UNANSWERED
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.identity import SUMMARY_FILE
from fedlm.fl_core.runs.outcome import statement_in
from fedlm.fl_core.runs.run_folder import COMPARISON_FILE

_CHECKPOINTS, _ERROR, _LOCK = "checkpoints", "error.txt", ".lock"
_MARKS = (METRICS_FILE, SUMMARY_FILE, _CHECKPOINTS, _ERROR)
_DEEPEST_CELL = 6


@dataclass(frozen=True)
class RecordedRun:
    """A run, as its folder tells of it.

    Attributes:
      directory: of the run.
      settings: flat, empty where nothing tells them yet.
      summary: what the run said at its end; None where it has not ended, or has gone on since.
      rows: its metrics.
      running: a process holds its folder.
    """

    directory: Path
    settings: dict[str, Any]
    summary: dict[str, Any] | None
    rows: list[dict[str, Any]]
    running: bool

    @property
    def kind(self) -> str:
        """The command that it is of."""
        if "from" in self.settings:
            return "import"
        if "steps" in self.settings:
            return "pretrain"
        if "over_selection" in self.settings:
            return "serve"
        beneath = self.directory.absolute().parents[:_DEEPEST_CELL]
        return "compare" if any((folder / COMPARISON_FILE).exists() for folder in beneath) else "simulate"

    @property
    def model(self) -> str | None:
        """Name of the model, where anything tells it."""
        return self.settings.get("model")

    @property
    def counter(self) -> str:
        """What is counted: `round` or `step`."""
        return "step" if self.kind == "pretrain" else "round"

    @property
    def done(self) -> int:
        """Rounds or steps that it has done and told of; a private run withholds those that are not released."""
        counted = max((row.get(self.counter, -1) + 1 for row in self.rows), default=0)
        return max(counted, (self.summary or {}).get(f"{self.counter}s", 0))

    @property
    def asked(self) -> int | None:
        """Rounds or steps that it was asked for."""
        return self.settings.get(f"{self.counter}s")

    @property
    def state(self) -> str:
        """`running`, `finished`, `diverged`, `unanswered`, `failed` or `interrupted`."""
        if self.running:
            return "running"
        if self.summary is not None:
            return str(self.summary.get("status", "interrupted"))
        return "failed" if (self.directory / _ERROR).exists() else "interrupted"

    @property
    def may_go_on(self) -> bool:
        """Whether the same command would train on."""
        return self.state not in (FINISHED, DIVERGED, UNANSWERED)

    @property
    def has_ledger(self) -> bool:
        """Whether it keeps a record of the privacy that it spends."""
        return (self.directory / PRIVACY_FOLDER / LEDGER_FILE).exists()

    @property
    def privacy(self) -> str:
        """Its privacy in short, by its ledger: an epsilon with unit, adjacency and delta, or why there is none."""
        if not self.has_ledger:
            return NOT_PRIVATE
        secret = self.settings.get("noise_seed") == "entropy" and self.settings.get("noise_cohort_size") is None
        if secret and self.may_go_on:
            return "not over; `fedlm account ledger` states what is spent"
        try:
            stated = statement_in(self.directory)
        except CheckpointError:
            return f"{NOT_PRIVATE}: its ledger is damaged"
        if stated is None or stated.total is None:
            return NOT_PRIVATE
        total = stated.total
        # The terms alone; what they mean is in the summary.
        unit, adjacency = _unit_in_short(total.unit), total.adjacency.partition(":")[0]
        bounds = f"epsilon {rounded_up(total.epsilon)} at delta {rounded_up(total.delta)}"
        terms = f"{bounds}; unit: {unit}; adjacency: {adjacency}"
        return "; ".join([terms, *stated.provisos()])

    def score(self, name: str) -> float | None:
        """Look a score up, such as `test_perplexity`; the newest where it is a held-out one."""
        found = (self.summary or {}).get(name)
        if found is None and name.startswith("heldout_"):
            found = next((row[name] for row in reversed(self.rows) if row.get(name) is not None), None)
        return found

    @cached_property
    def size(self) -> int:
        """Bytes of all its files."""
        return folder_size(self.directory)

    @property
    def changed(self) -> float:
        """When it last told anything, in seconds since 1970."""
        marks = (self.directory / name for name in _MARKS)
        return max(mark.stat().st_mtime for mark in marks if mark.exists())


def _unit_in_short(unit: str) -> str:
    if unit.startswith(ONE_DOCUMENT):
        return "document"
    return "packed sequence" if may_be_of_several(unit) else unit.partition(":")[0]


def find_runs(folder: Path) -> list[RecordedRun]:
    """Read all runs in a folder and below it, in the order of their paths.

    Raises:
      CheckpointError: there is no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder; give one with runs")
    runs = [read_run(directory) for directory in _run_folders(folder)]
    if not runs:
        raise CheckpointError(
            f"{folder}: there is no run in it; give the {setting('out')} of one, or a folder with such"
        )
    return runs


def read_run(directory: Path) -> RecordedRun:
    """Read what a run left in its folder.

    Raises:
      CheckpointError: there is no run, or its summary is damaged.
    """
    if not is_run(directory):
        raise CheckpointError(f"{directory}: not the folder of a run; give the {setting('out')} of one")
    summary, about = _read_json(directory / SUMMARY_FILE), {}
    for checkpoint in reversed(whole_checkpoints(directory)):
        about = _read_json(checkpoint / "about" / "metadata") or {}
        break
    rows, ended = read_rows(directory / METRICS_FILE), summary or {}
    run = RecordedRun(directory, settings_in(about | ended), summary, rows, _is_held(directory))
    if run.done > ended.get(f"{run.counter}s", 0):
        return replace(run, settings=settings_in(ended | about), summary=None)
    return run


def whole_checkpoints(directory: Path) -> list[Path]:
    """List the checkpoints of a run that were written to their end, oldest first."""
    found = (path for path in (directory / _CHECKPOINTS).glob("*") if path.name.isdecimal())
    return sorted(found, key=lambda path: int(path.name))


def folder_size(folder: Path) -> int:
    """Add up the bytes of all files in a folder, without following links."""
    return sum((Path(place) / name).lstat().st_size for place, _, names in os.walk(folder) for name in names)


def _run_folders(folder: Path) -> Iterator[Path]:
    for place, names, _ in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if is_run(Path(place)):
            names.clear()
            yield Path(place)


def is_run(directory: Path) -> bool:
    """Say whether a folder is that of a run, of whatever kind."""
    return any((directory / name).exists() for name in _MARKS)


def _is_held(directory: Path) -> bool:
    try:
        with (directory / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); remove it, or leave this run out") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: is not JSON object; remove it, or leave this run out")
    return found
