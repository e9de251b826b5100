"""The processes of a measurement: each runs one function, is told what to do over a pipe, and answers over it."""

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import psutil

_CONTEXT = multiprocessing.get_context("spawn")


class ProcessError(Exception):
    """A process failed, or did not answer in time."""


class Worker:
    """A process that runs `function(connection, *arguments)`.

    Attributes:
      pid: of the process.
      first: what it said when it was ready.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, cores: Sequence[int] | None = None):
        """Start it, and wait until it is ready.

        Args:
          function: what it runs; it sends something first, then one answer a request.
          arguments: after the connection.
          cores: that it may use; all where None.
        """
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(theirs, cores, function, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0
        self.first = self.wait(120)

    def ask(self, *request: Any, seconds: float = 600) -> Any:
        """Ask for something, and wait for the answer."""
        self.send(*request)
        return self.wait(seconds)

    def send(self, *request: Any) -> None:
        self._connection.send(request)

    def wait(self, seconds: float = 600) -> Any:
        """Wait for an answer.

        Raises:
          ProcessError: there is none in time, or it is one of failure.
        """
        try:
            if not self._connection.poll(seconds):
                raise ProcessError(f"no answer within {seconds:g} s")
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ProcessError(f"a process has ended: {error!r}") from error
        if isinstance(answer, ProcessError):
            raise answer
        return answer

    def cpu_seconds(self) -> float:
        """CPU time that it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def memory(self) -> int:
        """Its resident set, in bytes."""
        return psutil.Process(self.pid).memory_info().rss

    def peak_memory(self) -> int:
        """The largest that its resident set was since `forget_peak`, in bytes; only Linux knows."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))

    def forget_peak(self) -> None:
        """Begin a new peak."""
        with open(f"/proc/{self.pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._process.join(3)
        self._process.kill()
        self._process.join()


def _run(connection: Connection, cores: Sequence[int] | None, function: Callable[..., None], *arguments: Any) -> None:
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        with contextlib.suppress(EOFError, BrokenPipeError):
            function(connection, *arguments)
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(ProcessError(f"{type(error).__name__}: {error}"))
    finally:
        # A measurement is over: nothing is waited for.
        os._exit(0)
