"""The folder of a run: the first process reads and writes it, the others are told what they need of it."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from fedlm.fl_core.runs.checkpoints import Checkpoints
from fedlm.fl_core.runs.processes import from_first, gather, is_first, together
from fedlm.fl_core.runs.metrics_log import MetricsLog, finite_row
from fedlm.fl_core.runs.round_rows import DIVERGED_ROUNDS
from fedlm.fl_core.runs.run_lock import run_lock

_State = TypeVar("_State")


class RunFolder:
    """Lock, checkpoints and metrics of one run; a context manager that all processes enter.

    Attributes:
      directory: where it is.
      rows: the metrics rows so far; in other processes than the first only the latest of those from before.
    """

    def __init__(self, directory: Path, counter: str = "round"):
        """Name the folder.

        Args:
          directory: made where absent.
          counter: the name under which a row of metrics has its round.
        """
        self._counter = counter
        self.directory = directory
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
            self.directory.mkdir(parents=True, exist_ok=True)
            self._opened.enter_context(run_lock(self.directory))
            self._checkpoints = self._opened.enter_context(Checkpoints(self.directory / "checkpoints"))

    def resume(self, fresh: _State, check: Callable[[dict[str, Any]], None]) -> tuple[_State, int]:
        """Go back to the newest checkpoint, and forget what was recorded after it.

        Args:
          fresh: the state of a run that begins.
          check: refuses a checkpoint of another run, by the facts saved with it.

        Returns:
          The state, on all devices of all processes, and how many rounds it has seen.

        Raises:
          UserError: the checkpoint cannot be read, or was refused.
        """
        state, rounds = together(lambda: self._newest(fresh, check))
        rounds = gather(rounds)[0]
        if is_first():
            self._log = self._opened.enter_context(MetricsLog(self.directory, rounds, self._counter))
            self.rows = self._log.rows
        latest = gather(self.rows[-DIVERGED_ROUNDS:])[0]
        if not is_first():
            self.rows = latest
        return from_first(state), rounds

    def _newest(self, fresh: _State, check: Callable[[dict[str, Any]], None]) -> tuple[_State, int]:
        rounds = self._checkpoints.latest_round() if self._checkpoints else 0
        if not rounds or self._checkpoints is None:
            return fresh, 0
        check(self._checkpoints.restore_about(rounds))
        return self._checkpoints.restore_state(rounds, fresh), rounds

    def checkpoint_rounds(self) -> list[int]:
        """List the whole checkpoints by the rounds that they have seen."""
        return self._checkpoints.all_rounds() if self._checkpoints else []

    def about(self, rounds: int) -> dict[str, Any]:
        """Read the facts saved with a checkpoint; see `fedlm.fl_core.runs.checkpoints.Checkpoints.restore_about`."""
        assert self._checkpoints is not None
        return self._checkpoints.restore_about(rounds)

    def restore(self, rounds: int, like: Any) -> Any:
        """Read a checkpoint; see `fedlm.fl_core.runs.checkpoints.Checkpoints.restore_state`."""
        assert self._checkpoints is not None
        return self._checkpoints.restore_state(rounds, like)

    def open_log(self, first_round: int, rows: list[dict[str, Any]] | None = None) -> None:
        """Open the record of rounds in the only process.

        Args:
          first_round: the round that runs next; rows from there on are forgotten.
          rows: some that must be there, and are added where an interruption kept them from being written.
        """
        self._log = self._opened.enter_context(MetricsLog(self.directory, first_round, self._counter))
        there = {row[self._counter] for row in self._log.rows}
        for row in rows or []:
            if row[self._counter] not in there:
                self._log.append(row)
        self.rows = self._log.rows

    def append(self, row: dict[str, Any]) -> None:
        """Record a round.

        Args:
          row: JSON-able numbers by name. A number that is not finite becomes None.
        """
        if self._log is not None:
            self._log.append(row)
        else:
            self.rows.append(finite_row(row))

    def check_room(self, state: Any) -> None:
        """Make sure that there is room for a checkpoint; see `fedlm.fl_core.runs.checkpoints.Checkpoints.check_room`."""
        if self._checkpoints is not None:
            self._checkpoints.check_room(state)

    def save(self, rounds: int, state: Any, about: dict[str, Any]) -> None:
        """Save a checkpoint; see `fedlm.fl_core.runs.checkpoints.Checkpoints.save`.

        Args:
          rounds: how many rounds are finished.
          state: after them.
          about: JSON-able facts that tell whose checkpoint it is.
        """
        if self._checkpoints is not None:
            self._checkpoints.save(rounds, state, about)
