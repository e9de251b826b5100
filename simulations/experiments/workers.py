"""Worker processes that run cells: each has one device to itself, a CPU core or an accelerator."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlm.simulations.worker_processes import cpu_cores


@dataclass(frozen=True)
class Worker:
    """What a worker process is given when it starts."""

    numbers: Any  # a queue from which each worker takes its number
    rows: Any  # a queue for (cell directory, its row); None for the row when the cell begins
    count: int


_connection: Worker | None = None
"""Of a worker process to its parent; set once, when the process starts."""


def default_workers() -> int:
    """Count the devices that cells can run on at the same time. Returns the number of accelerators, or of CPU cores
    where there is none."""
    # Asked in a process of its own: this one must not take the accelerators' memory.
    code = "import jax; print(jax.default_backend(), jax.local_device_count())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.split()
    if len(answer) == 2 and answer[0] != "cpu":
        return int(answer[1])
    return len(cpu_cores())


def connect_worker(worker: Worker) -> None:
    """Bind this new process to its own device, before JAX starts in it."""
    global _connection
    _connection = worker
    number = worker.numbers.get()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(number))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    cores = cpu_cores()
    # With fewer workers than cores the cores are shared out; XLA starts as many threads as it may use cores.
    mine = cores[number * len(cores) // worker.count : (number + 1) * len(cores) // worker.count]
    if hasattr(os, "sched_setaffinity") and mine:
        os.sched_setaffinity(0, mine)
    import jax

    jax.config.update("jax_num_cpu_devices", 1)


def report_row(directory: Path, row: dict[str, Any] | None) -> None:
    """Send the parent a cell's new row, or None when the cell begins."""
    if _connection is not None:
        _connection.rows.put((directory, row))
