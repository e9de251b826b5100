"""Cells of a comparison or a grid, whatever they train, executed one at a time by each of several workers.

A cell that fails or whose process is killed does not end the others.
"""

import multiprocessing
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import UserError
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.worker_processes import cpu_cores, ended_with_this, worker_processes
from fedlm.models.arguments import check_fields
from fedlm.simulations.comparisons.workers import Worker, connect_worker, default_workers, refuse_more_cores, report_row

MAX_ATTEMPTS = 2
"""How often a cell is begun whose process is killed."""

_RELEASE_SECONDS = 300.0

Row = dict[str, Any]
"""What a cell reports while it runs; JSON-able."""


class CellTask(Protocol):
    """What a worker is given: picklable and hashable, equal to another where both are the same cell."""

    @property
    def directory(self) -> Path:
        """The folder where it runs and finds its checkpoints; no two cells share one."""
        ...

    def is_finished(self) -> bool:
        """Say whether its result is there."""
        ...

    def run(self, report: Callable[[Row], None]) -> None:
        """Go on from its last checkpoint to its end, and report rows meanwhile.

        Raises:
          UserError: settings or data do not fit, so that no other cell needs to be begun.
          Exception: this cell fails.
        """
        ...


Task = TypeVar("Task", bound=CellTask)
Observer = Callable[[Task, Row], None]
"""Called with the rows of each cell, as they come."""


def await_release(cell: CellTask) -> None:
    """Wait until no other process runs a cell that is not finished: who begins it again on another machine may be ahead
    of the end of the first, and a file server may keep the lock of a machine that died for minutes.

    Raises:
      ConfigurationError: one still does.
    """
    if not cell.is_finished() and cell.directory.is_dir():
        with run_lock(cell.directory, _RELEASE_SECONDS):
            pass


def execute_cell(cell: CellTask, report: Callable[[Row], None]) -> str | None:
    """Run one cell, in the worker. Returns why it failed, if it did; its folder has the traceback in `error.txt`.
    Raises UserError where settings or data do not fit."""
    try:
        cell.run(report)
    except UserError:
        raise
    except Exception as error:
        cell.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(cell.directory / "error.txt", traceback.format_exc())
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


@dataclass(frozen=True)
class LocalProcesses:
    """Executes cells by processes of this machine, each with CPU cores, or an accelerator, of its own.

    Attributes:
      workers: how many; as many as there are accelerators, or CPU cores to give them, where None.
      cores: of each; an equal part of the machine's where None.

    Example:
      >>> LocalProcesses(workers=2)
      LocalProcesses(workers=2, cores=None)
    """

    workers: int | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def execute(self, cells: Sequence[Task], observe: Observer[Task], total: int) -> dict[Task, str]:
        """Run cells that are not finished, and return when each of them has finished or failed.

        Args:
          cells: what to run.
          observe: see `Observer`.
          total: how many cells there are, with those that were finished before: what a cell is given to run with, by
            which its last bits are decided, is the same after an interruption.

        Returns:
          Why cells failed; empty where none did.

        Raises:
          UserError: settings or data do not fit.
        """
        failures: dict[Task, str] = {}
        attempts: Counter[Task] = Counter()
        pending, most = list(cells), min(self.workers or default_workers(self.cores or 1), total)
        refuse_more_cores(self.cores or 1)
        cores = self.cores or max(len(cpu_cores()) // most, 1)
        context = multiprocessing.get_context("spawn")
        while pending:
            workers = min(most, len(pending))
            numbers, (rows, end) = context.Queue(), context.Pipe(duplex=False)
            for number in range(workers):
                numbers.put(number)
            worker = Worker(numbers, end, context.Lock(), cores, workers)
            with rows, end, worker_processes(workers, connect_worker, worker) as pool:
                futures = {pool.submit(_execute_and_report, cell): cell for cell in pending}
                with ended_with_this():
                    started = _follow(futures, rows, observe)
            pending = []
            for future, cell in futures.items():
                error = future.exception()
                if error is None:
                    if failure := future.result():
                        failures[cell] = failure
                elif isinstance(error, UserError):
                    raise error
                else:
                    attempts[cell] += cell in started
                    if attempts[cell] < MAX_ATTEMPTS:
                        pending.append(cell)
                    else:
                        failures[cell] = f"its process was killed {MAX_ATTEMPTS} times; was there enough memory?"
        return failures


def run_cells(
    cells: Sequence[Task], executor: LocalProcesses, observe: Observer[Task] = lambda cell, row: None
) -> dict[Task, str]:
    """Run those of the cells that are not finished; see `LocalProcesses.execute`."""
    pending = [cell for cell in cells if not cell.is_finished()]
    return executor.execute(pending, observe, len(cells)) if pending else {}


def _follow(futures: dict[Future, Task], rows: Connection, observe: Observer[Task]) -> set[Task]:
    """Pass the workers' rows on until all futures are done; returns the cells that were begun."""
    by_directory = {cell.directory: cell for cell in futures.values()}
    begun: set[Task] = set()
    try:
        while True:
            all_done = not wait(futures, timeout=0).not_done
            if not rows.poll(0.2):
                if all_done:
                    return begun
                continue
            directory, row = rows.recv()
            begun.add(by_directory[directory])
            if row is not None:
                observe(by_directory[directory], row)
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _execute_and_report(cell: CellTask) -> str | None:
    report_row(cell.directory, None)
    return execute_cell(cell, lambda row: report_row(cell.directory, row))
