"""Commands that run in processes of their own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from fedlm.fl_core.runs.files.metrics_log import read_rows

# A command's own `--devices` says how many devices there are.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
LONGEST_SECONDS = 480
PATIENCE = 180  # seconds that only a defect takes, however busy the machine is


def find_free_port():
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def held_port():
    """A port of loopback that nobody else is given, also while the server there is killed and comes back."""
    with socket.socket() as holder:
        # Servers may listen beside it, and no other socket is bound to it by chance.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def begin(*words):
    """Begin a command of fedlm in a process of its own."""
    command = [sys.executable, "-m", "fedlm", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def begin_two(*words, of_second=()):
    """Begin a command in two processes, which work together; the second may be given other words."""
    group = [f"--coordinator=127.0.0.1:{find_free_port()}", "--num-processes=2"]
    return [begin(*words, *group, f"--process-id={one}", *(of_second if one else ())) for one in range(2)]


def finish_well(*processes):
    """Wait for the end of processes, all of which must end well; returns the output and errors of each."""
    results = [finish(process) for process in processes]
    assert [status for status, *_ in results] == [0] * len(results), results
    return [said for _, *said in results]


def kill_once(process, reached):
    """Kill a process as soon as something is reached."""
    while not reached() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.communicate()


def finish(process):
    """Wait for the end of a process; returns its status, output and errors."""
    try:
        output, errors = process.communicate(timeout=LONGEST_SECONDS)
    finally:
        process.kill()
    return process.returncode, output, errors


def type_script(script, folder, environment, seconds=300, statuses=(0,)):
    """Run a script of a shell, whose processes end with it, with one of these statuses. Returns its errors."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        _, errors = process.communicate()
    finally:
        timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    logs = "".join(path.read_text() for path in Path(folder).glob("*.log"))
    assert process.returncode in statuses, f"{process.returncode}: {script}\n{errors}\n{logs}"
    return errors


def rows_of(out):
    """The rows of a run's metrics without what differs between equal runs."""
    rows = read_rows(out / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def events(process):
    """The events in a process's log."""
    lines = open(process.log, encoding="utf-8").read().splitlines()  # noqa: SIM115
    return [json.loads(line) for line in lines if line.startswith("{")]


def wait_for(process, name):
    """Wait until a process logs an event of a name; returns the event."""
    end = time.monotonic() + PATIENCE
    while not any(event["event"] == name for event in events(process)):
        assert process.poll() is None, open(process.log).read()  # noqa: SIM115
        assert time.monotonic() < end, f"no {name}: {open(process.log).read()}"  # noqa: SIM115
        time.sleep(0.1)
    return next(event for event in events(process) if event["event"] == name)
