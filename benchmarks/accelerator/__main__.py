"""Measure everything on this machine's accelerators: rounds, private steps, noise, the recurrence, parity with the CPU.

Cells are measured one after another in order of value until the minutes are over. Each result is on the disk, in
results.jsonl, before the next cell begins; summary.md is made of them in between, with pictures at the end, and
by --report at any time, also after a run that was killed. A cell that fails, takes too long, has too little memory or
lacks a package is recorded with the reason, and the others go on. docs/accelerators.md says more.

    python -m benchmarks.accelerator --minutes 9
    python -m benchmarks.accelerator --continue --only comparison parity
    python -m benchmarks.accelerator --rehearse --results /tmp/rehearsal
"""

import argparse
import datetime
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from benchmarks.accelerator import cells, records
from benchmarks.accelerator.report import describe_found, in_words, write_report, write_summary
from benchmarks.accelerator.workers import CRASHED, FAILED, MEASURED, SKIPPED, TIMED_OUT, Worker

RESULTS = Path(__file__).parent / "results"
LOG = "log.txt"
SECONDS_TO_START = 180.0
SECONDS_TO_REPORT = 15.0
SECONDS_BETWEEN_REPORTS = 30.0
NO_ACCELERATOR = 2
_Told = TypeVar("_Told")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked this process to end."""


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(words)
    if arguments.report:
        return 0 if _report(arguments.results) else 1
    return run(
        cells.tiny() if arguments.rehearse else cells.full(),
        arguments.results,
        minutes=arguments.minutes,
        only=arguments.only,
        rehearsed_devices=arguments.rehearse,
        go_on=arguments.go_on,
    )


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=_minutes, default=9.0, help="how long it may take in all (9)")
    parser.add_argument(
        "--only", nargs="+", choices=cells.GROUPS, metavar="GROUP", help=f"of {', '.join(cells.GROUPS)}"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of results.jsonl, summary.md and pictures"
    )
    parser.add_argument(
        "--continue",
        action="store_true",
        dest="go_on",
        help="leave out what results.jsonl has of these devices; without it, new results stand before the old ones",
    )
    parser.add_argument(
        "--rehearse",
        type=int,
        nargs="?",
        const=1,
        metavar="DEVICES",
        help="run everything with tiny sizes on so many CPU devices (1), to see that it runs; its numbers say nothing",
    )
    parser.add_argument(
        "--report", action="store_true", help="measure nothing; make summary and pictures of the results"
    )
    return parser.parse_args(words)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes, such as 9")
    return minutes


def run(
    wanted: list[cells.Cell],
    results: Path,
    minutes: float = 9.0,
    only: Sequence[str] | None = None,
    rehearsed_devices: int | None = None,
    go_on: bool = False,
) -> int:
    """Measure cells, and say on standard output how it goes.

    Args:
      wanted: in the order in which they are measured.
      results: folder; made where absent.
      minutes: how long it may take, the report included.
      only: groups that are measured; the device's peaks are in any case. All where None.
      rehearsed_devices: CPU devices to run on; None for accelerators.
      go_on: leave out what earlier runs on these devices measured.

    Returns:
      0; 1 where a cell failed, crashed or took too long; 2 where there is no accelerator. 128 and the signal's number
      after a signal.
    """
    deadline = time.monotonic() + 60 * minutes
    results.mkdir(parents=True, exist_ok=True)
    (results / LOG).write_bytes(b"")
    with tempfile.TemporaryDirectory(prefix="compiled-") as cache:
        session = Session(results, environment(rehearsed_devices, cache), deadline)
        before = {number: signal.signal(number, _stop) for number in _SIGNALS}
        try:
            return _run(session, wanted, only, rehearsed_devices, go_on)
        except Stopped as stopped:
            print(f"stopped by {signal.Signals(stopped.args[0]).name}; what was measured is kept", flush=True)
            _report(results)
            return 128 + stopped.args[0]
        finally:
            _ignore_signals()
            session.close()
            for number, handler in before.items():
                signal.signal(number, handler)


def _run(
    session: "Session", wanted: list[cells.Cell], only: Sequence[str] | None, devices: int | None, go_on: bool
) -> int:
    answer = session.ask("benchmarks.accelerator.found:describe", {}, SECONDS_TO_START)
    if answer["status"] != MEASURED:
        print(f"JAX cannot be used here: {answer['reason']}", file=sys.stderr)
        return NO_ACCELERATOR
    found = answer["result"]
    if found["platform"] == "cpu" and devices is None:
        print(
            f"no accelerator: JAX {found['jax']} sees only this machine's CPU; install jax[cuda13] where there is a "
            "GPU (`make accelerator` does), or give --rehearse to see everything run with tiny sizes on a CPU",
            file=sys.stderr,
        )
        return NO_ACCELERATOR
    record = {
        "kind": records.RUN,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rehearsal": devices is not None,
        "found": found,
    }
    before = records.read(session.results)
    records.append(session.results, record)
    done = set()
    if go_on and before and records.same_machine(before.run, record):
        done = {key for key, cell in before.cells.items() if cell["status"] == MEASURED}
    chosen = [cell for cell in wanted if only is None or cell.group in (cells.PEAKS, *only)]
    chosen = [cell for cell in chosen if (cell.group, cell.name) not in done]
    session.say(describe_found(found, record["rehearsal"]))
    session.say(f"{len(chosen)} cells, {len(done)} measured before; {session.left():.0f} s left")
    statuses = [session.measure(cell) for cell in chosen]
    _report(session.results)
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    session.say(", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items()) or "nothing to do")
    return int(any(status in (FAILED, CRASHED, TIMED_OUT) for status in statuses))


class Session:
    """A run: its worker process, of which there is one at a time, its clock and its results."""

    def __init__(self, results: Path, environment: Mapping[str, str], deadline: float):
        self.results = results
        self._environment, self._deadline = environment, deadline
        self._began = self._reported = time.monotonic()
        self._worker: Worker | None = None

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)

    def left(self) -> float:
        """Seconds that are left for measuring."""
        return self._deadline - SECONDS_TO_REPORT - time.monotonic()

    def ask(self, measure: str, arguments: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Have the worker call a function, a new worker where the last one is of no more use."""
        if self._worker is None:
            self._worker = Worker(self.results / LOG, self._environment)
        answer = self._worker.ask(measure, arguments, limit)
        if answer["status"] in (FAILED, CRASHED, TIMED_OUT):
            self.close()
        return answer

    def measure(self, cell: cells.Cell) -> str:
        """Measure a cell, or say why not, and write it down; gives its status."""
        left = self.left()
        if left < max(cell.least, 1.0):
            answer = {"status": SKIPPED, "reason": f"{max(left, 0):.0f} s were left, it may need {cell.least:.0f}"}
        else:
            if cell.alone:
                self.close()
            answer = self.ask(cell.measure, cell.arguments, min(cell.limit, left))
            if cell.alone:
                self.close()
        records.append(
            self.results,
            {"kind": records.CELL, "group": cell.group, "name": cell.name, "arguments": cell.arguments, **answer},
        )
        words = _guarded(lambda: in_words(cell.group, answer), answer["status"])
        self.say(f"{cell.group}: {cell.name}: {words}")
        if time.monotonic() - self._reported > SECONDS_BETWEEN_REPORTS:
            _guarded(lambda: write_summary(self.results), None)
            self._reported = time.monotonic()
        return answer["status"]

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def environment(rehearsed_devices: int | None, cache: str) -> dict[str, str]:
    """Name the variables that a worker gets beside those of this process.

    Programs are compiled once, also where a worker has to be started anew. Beside the accelerator JAX must see the CPU,
    which results are compared with.
    """
    variables: dict[str, str] = {}
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        variables["JAX_COMPILATION_CACHE_DIR"] = cache
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1"
    if rehearsed_devices is not None:
        # Tiny programs take far longer to compile than to run.
        variables["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        return variables | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(rehearsed_devices)}
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and "cpu" not in platforms.split(","):
        variables["JAX_PLATFORMS"] = f"{platforms},cpu"
    return variables


def _report(folder: Path) -> bool:
    """Make summary and pictures, and show the goals; whether there was anything to make them of."""
    return _guarded(lambda: write_report(folder, print), False)


def _guarded(tell: Callable[[], _Told], otherwise: _Told) -> _Told:
    """Tell of what is written down already; that it cannot be told, or drawn, must not end a run."""
    try:
        return tell()
    except Exception:
        traceback.print_exc()
        return otherwise


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _ignore_signals()
    raise Stopped(number)


def _ignore_signals() -> None:
    # What is left to do takes a moment, and is not interrupted again.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
