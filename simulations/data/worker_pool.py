"""Running tasks on worker processes, results in the order of the tasks, with a bounded number in flight."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from fedlm.fl_core.errors import DataError
from fedlm.simulations.experiments.workers import end_with_parent

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

IN_FLIGHT = 2
"""Tasks for each worker that wait or run, so that none is idle and memory stays bounded."""


class WorkerPool:
    """Worker processes that start with the first task that two of them can share; a context manager.

    Args:
      workers: how many processes; with 1, tasks run in this one.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def map(self, function: Callable[[_Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        """Apply a function to every task.

        Args:
          function: picklable.
          tasks: picklable; taken one by one as workers become free.

        Yields:
          The results, in the order of the tasks.

        Raises:
          DataError: a worker process was killed.
          Exception: what the function or the iteration over tasks raises.
        """
        tasks = iter(tasks)
        first = list(_take(tasks, 2))
        if self.workers == 1 or len(first) < 2:
            for some in (first, tasks):
                yield from map(function, some)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn"), _start_worker)
        pending: deque[Future[_Result]] = deque(self._pool.submit(function, task) for task in first)
        try:
            for task in tasks:
                pending.append(self._pool.submit(function, task))
                while len(pending) >= IN_FLIGHT * self.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process of the import was killed, perhaps because memory ran out. The same command goes on "
                "where it was; give it fewer --workers."
            ) from error
        finally:
            for future in pending:
                future.cancel()


def _take(tasks: Iterator[_Task], count: int) -> Iterator[_Task]:
    for _, task in zip(range(count), tasks, strict=False):
        yield task


def _start_worker() -> None:
    # The parent alone answers to an interruption, and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=end_with_parent, daemon=True).start()
