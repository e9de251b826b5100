"""The folder of a run: the first process reads and writes it, the others are told what they need of it."""

import contextlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedlm.fl_core.atomic_files import Fence, make_folder
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.processes import gather, is_first, together
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, MetricsLog, finite_row
from fedlm.fl_core.runs.files.private_files import keep_private
from fedlm.fl_core.runs.files.run_lock import LOCK_FILE, FolderLock, run_lock
from fedlm.fl_core.runs.identity import SUMMARY_FILE
from fedlm.fl_core.runs.round_rows import DIVERGED_ROUNDS


class _Closing(Protocol):
    def close(self) -> None: ...


_Closes = TypeVar("_Closes", bound=_Closing)
COMPARISON_FILE, GRID_FILE = "comparison.json", "grid.json"
RUN, COMPARISON, GRID, DATA_SET = "a run", "a comparison", "a grid of trainings", "a data set"
AGGREGATOR, TRANSFERS_FOLDER = "an aggregator", "transfers"
SERVER, QUEUE_FILE = "a server of several runs", "server.db"
_CONTENTS = {COMPARISON_FILE: COMPARISON, GRID_FILE: GRID, "store.json": DATA_SET, QUEUE_FILE: SERVER} | dict.fromkeys(
    (METRICS_FILE, SUMMARY_FILE, "checkpoints"), RUN
)

_BEGUN_WITH = {
    RUN: (LOCK_FILE, "checkpoints"),
    COMPARISON: (COMPARISON_FILE, "cells", "trials"),
    GRID: (GRID_FILE, "cells"),
    SERVER: (LOCK_FILE, QUEUE_FILE),
}
"""Each folder has one of these before it has anything else."""
_OWN = {RUN: {"error.txt"}, AGGREGATOR: {TRANSFERS_FOLDER}}
"""What may lie in a folder that has none of these: the error of a run that could not begin, what was transferred."""


def refuse_other_contents(directory: Path, kind: str) -> None:
    """Refuse to write into a folder in which there is something else than `kind`, one of RUN to SERVER.

    What a file system or a desktop puts there counts for nothing: hidden files, and lost+found.

    Raises:
      CheckpointError: there is.
    """
    another = "folder" if kind == SERVER else setting("out")
    for name, what in _CONTENTS.items():
        if what != kind and (directory / name).exists():
            raise CheckpointError(
                f"{directory}: holds {what}, but {kind} would be written there; give another {another}"
            )
    if not directory.is_dir() or any((directory / name).exists() for name in _BEGUN_WITH.get(kind, ())):
        return
    found = {path.name for path in directory.iterdir() if not path.name.startswith(".")} - {"lost+found"}
    if others := sorted(found - _OWN.get(kind, set())):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise CheckpointError(
            f"{directory}: holds {', '.join(map(repr, others[:3]))}{more}, which {kind} of fedlm did not write; give "
            f"another {another}, a folder that is not there or is empty"
        )


def lock_of_run(directory: Path, private: bool) -> FolderLock:
    """Prepare to lock the folder of a run, which is made where absent; nobody but its owner gets at a private one. See
    `refuse_other_contents` for errors."""
    make_folder(directory)
    refuse_other_contents(directory, RUN)
    if private:
        keep_private(directory)
    return FolderLock(directory)


class RunFolder:
    """Lock, checkpoints and metrics of one run; a context manager that all processes enter.

    Attributes:
      directory: where it is.
      counter: the name under which a row of metrics has its round.
      fence: within which a process writes there that others may take over from.
      rows: the metrics rows so far; in other processes than the first only the latest of those from before.
    """

    def __init__(self, directory: Path, counter: str = "round", private: bool = False, fence: Fence | None = None):
        """Name the folder, which is made where absent; nobody but its owner gets at one that is private. It is locked
        where there is no fence."""
        self.directory, self.counter, self._private = directory, counter, private
        self.fence, self._locks = fence or contextlib.nullcontext, fence is None
        self._opened = ExitStack()
        self._checkpoints: Checkpoints | None = None
        self._log: MetricsLog | None = None
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> "RunFolder":
        try:
            together(self._open)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def _open(self) -> None:
        if is_first():
            make_folder(self.directory)
            refuse_other_contents(self.directory, RUN)
            self._opened.callback(self._keep_private)
            self._keep_private()
            if self._locks:
                self._opened.enter_context(run_lock(self.directory))
            self._checkpoints = self._opened.enter_context(
                Checkpoints(self.directory / "checkpoints", fence=self.fence)
            )

    def _keep_private(self) -> None:
        if self._private:
            keep_private(self.directory)

    def closing(self, opened: _Closes) -> _Closes:
        """Close something with the folder."""
        return self._opened.enter_context(contextlib.closing(opened))

    def checkpoint_rounds(self) -> list[int]:
        """List the whole checkpoints by the rounds that they have seen."""
        return self._checkpoints.all_rounds() if self._checkpoints else []

    def about(self, rounds: int) -> dict[str, Any]:
        """Read the facts saved with a checkpoint; only in the first process, and so are `restore`, `save`."""
        assert self._checkpoints is not None
        return self._checkpoints.restore_about(rounds)

    def restore(self, rounds: int, like: Any) -> Any:
        """Read what a checkpoint holds, of the structure of `like`."""
        assert self._checkpoints is not None
        return self._checkpoints.restore_state(rounds, like)

    def check_room(self, state: Any) -> None:
        """Make sure that there is room for a checkpoint; see `Checkpoints.check_room`."""
        assert self._checkpoints is not None
        self._checkpoints.check_room(state)

    def save(self, rounds: int, state: Any, about: dict[str, Any]) -> None:
        """Save a checkpoint with facts that tell whose it is; see `Checkpoints.save`."""
        assert self._checkpoints is not None
        self._checkpoints.save(rounds, state, about)
        self._keep_private()

    def open_log(self, first_round: int, checkpoint: int = 0) -> None:
        """Open the record of rounds, in all processes.

        Args:
          first_round: the round that runs next; rows from there on are forgotten.
          checkpoint: the one that is resumed from, 0 for none. The rows in it are added where an interruption kept them
            from being written.
        """
        together(lambda: self._open_log(first_round, checkpoint))
        latest = gather(self.rows[-DIVERGED_ROUNDS:])[0]
        if not is_first():
            self.rows = latest

    def _open_log(self, first_round: int, checkpoint: int) -> None:
        if not is_first():
            return
        with self.fence():
            self._log = self._opened.enter_context(MetricsLog(self.directory, first_round, self.counter))
        self.rows = self._log.rows
        there = {row[self.counter] for row in self.rows}
        for row in self.about(checkpoint).get("rows", []) if checkpoint else []:
            if row[self.counter] not in there:
                self.append(row)

    def append(self, row: dict[str, Any]) -> None:
        """Record a round; a number that is not finite becomes None."""
        if self._log is not None:
            with self.fence():
                self._log.append(row)
        else:
            self.rows.append(finite_row(row))
