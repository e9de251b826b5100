"""Copies the folder of a run, or of a server of several, while rounds go on.

Nobody can know what is released after a copy was made. So in the copy each private run has spent all that it planned,
and does not go on; its secrets are left out, so that nobody can draw its noise again; and nothing more is reserved from
the budget of a population.

Files are copied in such an order that what a later one says of an earlier one holds: ledgers before the checkpoints
that they name, these before the rows and databases that tell of their rounds, and the budget of a population before
the queue that has all runs of which it says that they have begun; which processes went on is on file before it is in
a database, so that file is last.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedlm.fl_core.atomic_files import refuse_filled, whole_folder
from fedlm.fl_core.errors import CheckpointError, DiskError
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.lineage import LINEAGE_FILE
from fedlm.fl_core.runs.run_folder import QUEUE_FILE, TRANSFERS_FOLDER

_CHECKPOINTS, _TRIES, _LEFT_SECONDS = "checkpoints", 20, 24 * 3600
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "*.partial", "noise-secret-*", "*-wal", "*-shm", "*.orbax-checkpoint-tmp", TRANSFERS_FOLDER
)
_LATER = shutil.ignore_patterns(_CHECKPOINTS, LEDGER_FILE, BUDGET_FILE, "*.db")


def back_up(folder: Path, out: Path) -> list[str]:
    """Copy a folder; returns what the copy says of each private run in it.

    Args:
      folder: of a run, or of a server of several runs; processes may write there.
      out: where the copy goes, which only its owner can look into.

    Raises:
      CheckpointError: there is no run, or a ledger is damaged.
      ConfigurationError: there is something at `out`.
      DiskError: the copy cannot be written, and is not there.
    """
    runs = [found.parent for found in _visible(folder, _CHECKPOINTS) if found.is_dir()]
    if not runs and not any(folder.glob("*.db")):
        raise CheckpointError(f"{folder}: there is no run, and no server of several runs")
    refuse_filled(out)
    with whole_folder(out, mode=0o700) as made:
        is_server = (folder / QUEUE_FILE).exists()
        said = [line for run in runs for line in _copy_run(run, made / run.relative_to(folder), is_server)]
        shutil.copytree(folder, made, ignore=_both, dirs_exist_ok=True)
        for path in _visible(folder, BUDGET_FILE):
            shutil.copy2(path, made / path.relative_to(folder))
            budget = DataBudget((made / path.relative_to(folder)).parent)
            if not budget.closed:  # as that of the copy of a copy
                budget.close()
            said.append(f"{path.relative_to(folder)}: nothing more can be reserved in the copy")
        for path in reversed(_visible(folder, "*.db")):
            _copy_database(path, made / path.relative_to(folder))
        for path in _visible(folder, LINEAGE_FILE):
            shutil.copy2(path, made / path.relative_to(folder))
    return said


def _visible(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.rglob(pattern))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def _both(directory: str, names: list[str]) -> set[str]:
    return _LEFT_OUT(directory, names) | _LATER(directory, names)


def _copy_run(run: Path, made: Path, of_server: bool) -> Iterator[str]:
    """Copy ledger and checkpoints, which are removed beside this, and end the run in the copy where it is private. That
    of a server cannot begin in the copy, where nothing is reserved; another must have begun here."""
    ledger = run / PRIVACY_FOLDER / LEDGER_FILE
    for left in run.glob(".backup-*"):  # by a copy that was killed
        if left.stat().st_mtime < time.time() - _LEFT_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    for _ in range(_TRIES):
        content = ledger.read_bytes() if ledger.exists() else None
        # Links keep what they name, so that copying may take long.
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=run) as held:
            try:
                linked = Path(held) / _CHECKPOINTS
                shutil.copytree(run / _CHECKPOINTS, linked, ignore=_LEFT_OUT, copy_function=_link)
            except (shutil.Error, FileNotFoundError):
                continue
            shutil.copytree(linked, made / _CHECKPOINTS, dirs_exist_ok=True)
        if content is None and ledger.exists():
            shutil.rmtree(made / _CHECKPOINTS)
            continue
        if content is None:
            begun = any((made / _CHECKPOINTS).iterdir()) or read_rows(run / METRICS_FILE)
            if not of_server and not begun:
                raise CheckpointError(
                    f"{run}: has trained no round yet, so that a copy could not tell whether it is private; try "
                    "again once it has"
                )
            return
        copied = made / PRIVACY_FOLDER / LEDGER_FILE
        copied.parent.mkdir(mode=0o700)
        # What a process was just writing of a last line counts for nothing.
        copied.write_bytes(content)
        known = PrivacyLedger(copied)
        last = known.last_release
        if last is not None and not (made / _CHECKPOINTS / str(last.rounds)).exists():
            shutil.rmtree(copied.parent)
            shutil.rmtree(made / _CHECKPOINTS)
            continue
        known.end_copy(time.time())
        rounds, planned = last.rounds if last else 0, known.plan.rounds
        yield f"{run.name}: the model of {rounds} rounds; all {planned} planned rounds count as released"
        return
    raise CheckpointError(f"{run / _CHECKPOINTS}: checkpoints come and go faster than they can be copied; try again")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DiskError(
            f"{source}: this disk makes no hard link to it ({error.strerror}); end the run, and copy its folder by "
            "other means"
        ) from error


def _copy_database(path: Path, made: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(made)) as copy:
            source.backup(copy)
    except sqlite3.Error as error:
        raise DiskError(f"{path}: cannot be copied to {made}: {error}; make room, then copy again") from error
    made.chmod(0o600)
