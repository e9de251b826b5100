"""Copies the folder of a run, or of a server of several, while rounds go on.

Nobody can know what is released after a copy was made. So in the copy each private run has spent all that it planned,
and does not go on; its secrets are left out, so that nobody can draw its noise again; and nothing more is reserved from
the budget of a population.

Files are copied in such an order that what a later one says of an earlier one holds: ledgers before the checkpoints
that they name, these before the rows and databases that tell of their rounds, and the budget of a population last.
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
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.runs.capabilities.budget_records import BudgetError
from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
from fedlm.fl_core.runs.run_folder import TRANSFERS_FOLDER

_CHECKPOINTS, _TRIES = "checkpoints", 20
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
    runs = [found.parent for found in sorted(folder.rglob(_CHECKPOINTS)) if found.is_dir()]
    if not runs and not any(folder.glob("*.db")):
        raise CheckpointError(f"{folder}: there is no run, and no server of several runs")
    refuse_filled(out)
    with whole_folder(out) as made:
        said = [line for run in runs for line in _copy_run(run, made / run.relative_to(folder))]
        shutil.copytree(folder, made, ignore=_both, dirs_exist_ok=True)
        for path in sorted(folder.rglob("*.db"), reverse=True):
            _copy_database(path, made / path.relative_to(folder))
        if (folder / BUDGET_FILE).exists():
            shutil.copy2(folder / BUDGET_FILE, made)
            with contextlib.suppress(BudgetError):  # where it is the copy of a copy
                DataBudget(made).close()
            said.append(f"{BUDGET_FILE}: nothing more can be reserved in the copy")
    out.chmod(0o700)
    return said


def _both(directory: str, names: list[str]) -> set[str]:
    return _LEFT_OUT(directory, names) | _LATER(directory, names)


def _copy_run(run: Path, made: Path) -> Iterator[str]:
    """Copy ledger and checkpoints, which are removed beside this, and end the run in the copy where it is private."""
    ledger = run / PRIVACY_FOLDER / LEDGER_FILE
    for _ in range(_TRIES):
        content = ledger.read_bytes() if ledger.exists() else None
        # Links keep what they name, so that copying may take long.
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=run) as held:
            try:
                linked = Path(held) / _CHECKPOINTS
                shutil.copytree(run / _CHECKPOINTS, linked, ignore=_LEFT_OUT, copy_function=os.link)
            except (shutil.Error, FileNotFoundError):
                continue
            shutil.copytree(linked, made / _CHECKPOINTS, dirs_exist_ok=True)
        if content is None:
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


def _copy_database(path: Path, made: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(made)) as copy:
        source.backup(copy)
    made.chmod(0o600)
