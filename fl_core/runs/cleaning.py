"""What can be removed of runs: what an interruption left half-written, checkpoints but the last, whole runs by name.

Nothing is removed that going on with a run needs, or that its guarantee rests on.
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.runs.recorded_runs import RecordedRun, folder_size, whole_checkpoints

_UNFINISHED = ("*.partial", ".*.partial", "checkpoints/*.orbax-checkpoint-tmp", "privacy/*.partial")


class Removal(NamedTuple):
    """A file or folder that can be removed."""

    run: Path  # the folder of the run that it is of
    path: Path
    why: str
    size: int  # bytes


def removable(run: RecordedRun) -> list[Removal]:
    """List what a run does not need: none of a running one, and of no run its newest checkpoint, ledger or secret."""
    if run.running:
        return []
    parts = {path for pattern in _UNFINISHED for path in run.directory.glob(pattern)}
    found = [_removal(run, path, "was never written to its end") for path in sorted(parts)]
    older = whole_checkpoints(run.directory)[:-1]
    return found + [_removal(run, path, "older than the last checkpoint") for path in older]


def whole_runs(runs: Sequence[RecordedRun], others: Iterable[RecordedRun], with_ledger: bool) -> list[Removal]:
    """List whole runs for removal.

    Args:
      runs: to remove.
      others: runs that stay, which may have begun with the parameters of one of these.
      with_ledger: remove also the records of what private runs have spent.

    Raises:
      ConfigurationError: a run is running, or a private run might go on; its ledger would be lost; or another run that
        might go on began with its parameters.
    """
    for run in runs:
        if run.running:
            raise ConfigurationError(f"{run.directory}: is running; end it first")
        if run.has_ledger and run.may_go_on:
            raise ConfigurationError(
                f"{run.directory}: a private run that might go on; without its ledger and secret what it has released "
                "could be spent again. Let it finish, or remove the folder by hand when nobody has its models"
            )
        if run.has_ledger and not with_ledger:
            raise ConfigurationError(
                f"{run.directory}: its ledger is the record of the privacy that was spent on its clients; copy it "
                f"elsewhere, and give {setting('with_ledger')}"
            )
    gone = {run.directory.resolve(): run for run in runs}
    for other in others:
        began_with = other.settings.get("init_from")
        if began_with is not None and other.may_go_on and Path(began_with).resolve() in gone:
            raise ConfigurationError(
                f"{began_with}: {other.directory} began with its parameters and needs them to go on; let that finish"
            )
    return [_removal(run, run.directory, "a whole run") for run in runs]


def remove(removals: Iterable[Removal]) -> None:
    """Remove what was listed; each run is held meanwhile.

    Raises:
      ConfigurationError: a run has begun to run.
    """
    for removal in removals:
        with run_lock(removal.run, wait_seconds=0):
            if removal.path.is_dir():
                shutil.rmtree(removal.path)
            else:
                removal.path.unlink(missing_ok=True)


def _removal(run: RecordedRun, path: Path, why: str) -> Removal:
    size = folder_size(path) if path.is_dir() else path.lstat().st_size
    return Removal(run.directory, path, why, size)
