"""Worker processes: how many, tasks handed to them, and their end with their parent."""

import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

IN_FLIGHT = 2
"""Tasks for each worker that wait or run, so that none is idle and memory stays bounded."""


def cpu_cores() -> list[int]:
    """Return the numbers of the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


_cores: list[socket.socket] = []
"""What holds the cores of this process; the operating system lets go of them when it ends, however it ends."""


def take_cores(count: int) -> None:
    """Bind this process to so many CPU cores, as far as there are, that no other process has taken so; once only.

    XLA starts as many threads as there are cores that it may use, and how it adds up, to the last bit, depends on their
    number. So there are as many where others have taken all: which ones is left to chance then.
    """
    if _cores or sys.platform != "linux":
        return
    allowed = cpu_cores()
    mine = []
    for core in allowed:
        # An abstract address is known to all processes of the machine, and needs no file.
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holder.bind(f"\0fedlm-core-{core}")
        except OSError:
            holder.close()
            continue
        _cores.append(holder)
        mine.append(core)
        if len(mine) == count:
            break
    others = [core for core in allowed if core not in mine]
    mine += random.sample(others, min(count - len(mine), len(others)))
    os.sched_setaffinity(0, mine)


def worker_processes(count: int, initialize: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """Return an executor whose processes begin with a picklable function, and end when this process is killed."""
    start = (initialize, *arguments)
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _start_worker, start)


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
        """Yield a picklable function's results, in the order of the tasks, which are taken as workers become free.

        Raises:
          BrokenProcessPool: a worker process was killed.
          Exception: what the function or the iteration over tasks raises.
        """
        tasks = iter(tasks)
        first = list(islice(tasks, 2))
        if self.workers == 1 or len(first) < 2:
            for some in (first, tasks):
                yield from map(function, some)
            return
        if self._pool is None:
            self._pool = worker_processes(self.workers, _leave_threads_and_interruptions)
        pending: deque[Future[_Result]] = deque(self._pool.submit(function, task) for task in first)
        try:
            for task in tasks:
                pending.append(self._pool.submit(function, task))
                while len(pending) >= IN_FLIGHT * self.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


class TerminatedError(BaseException):
    """The process was asked to end, by SIGTERM."""


@contextmanager
def ending_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what runs within as an exception does, so that worker processes and semaphores go too.

    Only for the main thread while it waits in Python: what blocks it in other code, such as a compiler, blocks the end.
    """

    def end(number: int, frame: object) -> None:
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ended_with_this() -> Iterator[None]:
    """End all worker processes at once where what runs within is interrupted, in place of waiting for their tasks."""
    try:
        yield
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def _start_worker(initialize: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    initialize(*arguments)


def _end_with_parent() -> None:
    # A worker that outlived a killed parent would go on writing into files that the next one resumes from.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _leave_threads_and_interruptions() -> None:
    # The parent alone answers to an interruption, and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
