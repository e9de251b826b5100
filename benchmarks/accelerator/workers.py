"""A process that measures one cell after another, so that whatever a measurement does to it ends no other.

Lines of JSON go both ways. A cell whose measurement raises is answered with the reason; one that ends its process, or
takes too long, costs a new process. It ends itself, with all that it started, when its parent does.
"""

import contextlib
import gc
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from benchmarks.simulation.peers.protocol import private_standard_output

ROOT = Path(__file__).parents[2]
MEASURED, SKIPPED, OUT_OF_MEMORY, FAILED, TIMED_OUT, CRASHED = (
    "measured",
    "skipped",
    "out_of_memory",
    "failed",
    "timed_out",
    "crashed",
)
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory", "OUT_OF_MEMORY")
_LONGEST_REASON = 400


class Worker:
    """The parent's side."""

    def __init__(self, log: Path, environment: Mapping[str, str]):
        """Start the process; what it prints goes to the end of the log."""
        self._log = log
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("ab") as errors:
            self._log_starts = errors.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.accelerator.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd=ROOT,
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"},
                text=True,
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, measure: str, arguments: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Have a function called.

        Args:
          measure: `module:function`.
          arguments: of the call, as JSON holds them.
          limit: seconds after which the process is killed.

        Returns:
          `status`, and with it `result` or `reason`. After `timed_out`, `crashed` or `failed` the process is of no more
          use: a failed kernel may have left the device in a state in which all that follows fails.
        """
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({"measure": measure, "arguments": dict(arguments)}) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            return {"status": TIMED_OUT, "reason": f"no result within {limit:.0f} s"}
        if line is None:
            status = self._process.wait()
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
            return {"status": CRASHED, "reason": f"its process ended {how}; {self._last_words()}"}
        return json.loads(line)

    def close(self) -> None:
        """End the process and all that it started, at once: nothing of it is worth waiting for."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put(None)

    def _last_words(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_starts)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
        return f"last in {self._log.name}: {lines[-1][:200]}" if lines else f"{self._log.name} says nothing of it"


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more; then, or when the parent is gone, end this process and its children."""
    waiting: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in requests:
            waiting.put(line)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    while True:
        request = json.loads(waiting.get())
        answer = call(request["measure"], request["arguments"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def call(measure: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call `module:function`, and put what came of it into words."""
    started = time.perf_counter()
    module, _, name = measure.partition(":")
    try:
        answer = {"status": MEASURED, "result": getattr(importlib.import_module(module), name)(**arguments)}
        json.dumps(answer)
    except Exception as error:
        traceback.print_exc()
        answer = _failure(error)
        # What the frames of the measurement hold would stay on the device as long as the error lives.
        error.__traceback__ = None
    gc.collect()
    return {**answer, "seconds": round(time.perf_counter() - started, 3)}


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device, or the host, had too little memory."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _NO_MEMORY)


def _failure(error: Exception) -> dict[str, Any]:
    text = " ".join(str(error).split())[:_LONGEST_REASON]
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(("fedlm", "benchmarks", "tests")):
        return {"status": SKIPPED, "reason": f"the package {error.name} is missing"}
    if is_out_of_memory(error):
        return {"status": OUT_OF_MEMORY, "reason": text}
    return {"status": FAILED, "reason": f"{type(error).__name__}: {text}"}


if __name__ == "__main__":
    serve(sys.stdin, private_standard_output())
