"""Starting contestants as processes, asking them for rounds, and watching what memory and idle time cost.

A contestant is any program that speaks the line protocol of `benchmarks.simulation.peers.protocol`.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

SECONDS_BETWEEN_SAMPLES = 0.25
SECONDS_TO_SETTLE = 1.0
SECONDS_TO_STOP = 5.0


class ContestantError(Exception):
    """A contestant died, did not answer in time, or said that it failed."""


class Contestant:
    """A running program that answers requests for rounds.

    Attributes:
      ready: what it said of itself when it was ready.
    """

    def __init__(self, command: Sequence[str], log: Path, timeout: float, environment: Mapping[str, str] | None = None):
        """Start the program and wait until it is ready.

        Args:
          command: words of the command line.
          log: where its standard error goes.
          timeout: seconds that any answer may take.
          environment: variables set in addition.

        Raises:
          ContestantError: it did not get ready; nothing of it is left running.
        """
        self._timeout, self._log, self._stopped = timeout, log, False
        self._started = time.perf_counter()
        self._family: dict[int, psutil.Process] = {}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
                text=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def age(self) -> float:
        """Seconds since the program was started."""
        return time.perf_counter() - self._started

    def run_round(self, variant: str) -> dict[str, Any]:
        """Ask for a round of a variant; raises ContestantError where there is no answer, or it is one of failure."""
        try:
            self._process.stdin.write(json.dumps({"variant": variant}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ContestantError(f"it has ended; see {self._log}") from None
        return self._answer()

    def family(self) -> list[psutil.Process]:
        """List the program and all processes that descend from it.

        Returns:
          Those that are alive; one that was seen before counts even when its parent has ended since.
        """
        for known in [*self._family.values(), *_process(self._process.pid)]:
            with contextlib.suppress(psutil.Error):
                self._family.update({child.pid: child for child in (known, *known.children(recursive=True))})
        return [member for member in self._family.values() if member.is_running()]

    def memory(self) -> int:
        """Sum up the family's proportional set sizes in bytes: a page that n processes share counts 1/n in each."""
        total = 0
        for member in self.family():
            with contextlib.suppress(psutil.Error):
                used = member.memory_full_info()
                total += getattr(used, "pss", used.uss)  # only Linux knows the proportional set size
        return total

    def cpu_seconds(self) -> float:
        """Sum up the CPU time that the living family has used."""
        total = 0.0
        for member in self.family():
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                total += times.user + times.system
        return total

    @contextlib.contextmanager
    def watch_memory(self) -> Iterator[list[int]]:
        """Sample the family's memory while the context lasts.

        Yields:
          A list to which the samples are added.
        """
        samples: list[int] = []
        done = threading.Event()

        def sample() -> None:
            while not done.wait(SECONDS_BETWEEN_SAMPLES):
                samples.append(self.memory())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield samples
        finally:
            done.set()
            thread.join()

    def pause(self) -> None:
        """Stop the family, so that its background threads take no time from others; returns once it stands still."""
        self._stopped = True
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + SECONDS_TO_STOP
        while any(map(_runs, self.family())) and time.monotonic() < deadline:
            time.sleep(0.01)
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the family go on, and give it a moment to settle."""
        if self._stopped:
            self._signal(signal.SIGCONT)
            self._stopped = False
            time.sleep(SECONDS_TO_SETTLE)

    def close(self, patience: float = 5.0) -> None:
        """End the program: by closing its input, then by force, with all that descends from it.

        Args:
          patience: seconds that it may take to end by itself.
        """
        self.family()
        self.resume()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        for member in self.family():
            with contextlib.suppress(psutil.Error):
                member.send_signal(number)

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout)
        except queue.Empty:
            raise ContestantError(f"no answer within {self._timeout:g} s; see {self._log}") from None
        if line is None:
            raise ContestantError(f"it has ended; see {self._log}")
        return parse_answer(line)


def parse_answer(line: str) -> dict[str, Any]:
    """Read a line that a contestant wrote; raises ContestantError where it is no message, or one of failure."""
    try:
        message = json.loads(line)
    except json.JSONDecodeError:
        message = None
    if not isinstance(message, dict):
        raise ContestantError(f"not a line of the protocol: {line.strip()[:200]!r}")
    if "error" in message:
        raise ContestantError(str(message["error"]))
    if "ready" not in message and not {"seconds", "steps", "loss_after"} <= message.keys():
        raise ContestantError(f"an answer lacks something: {line.strip()[:200]!r}")
    return message


def idle_cpu_percent(contestants: Sequence[Contestant], seconds: float) -> list[float]:
    """Measure, of all at once, how many percent of a core each contestant uses while nobody asks it for anything."""
    before = [contestant.cpu_seconds() for contestant in contestants]
    time.sleep(seconds)
    after = [contestant.cpu_seconds() for contestant in contestants]
    return [100 * max(0.0, end - begin) / seconds for begin, end in zip(before, after, strict=True)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _process(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.Error:
        return []
