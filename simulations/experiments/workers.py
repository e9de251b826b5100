"""Worker processes that run cells: each has one device to itself, a CPU core or an accelerator."""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.worker_processes import cpu_cores, take_cores


@dataclass(frozen=True)
class Worker:
    """What a worker process is given when it starts."""

    numbers: Any  # a queue from which each worker takes its number
    # for (cell directory, its row), None for the row when the cell begins; written at once, for what waits in a thread
    # is lost when the process of another cell is killed, and with it all
    rows: Connection
    lock: Any  # of the rows
    cores: int  # CPU cores of each


_connection: Worker | None = None
"""Of a worker process to its parent; set once, when the process starts."""


def default_workers(cores: int = 1) -> int:
    """Count the devices that cells can run on at the same time. Returns the number of accelerators, or where there is
    none, how often there are so many CPU cores."""
    # Asked in a process of its own: this one must not take the accelerators' memory.
    code = "import jax; print(jax.default_backend(), jax.local_device_count())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.split()
    if len(answer) == 2 and answer[0] != "cpu":
        return int(answer[1])
    return max(len(cpu_cores()) // cores, 1)


def refuse_more_cores(cores: int) -> None:
    """Raise ConfigurationError where a cell is to have more CPU cores than there are."""
    there = len(cpu_cores())
    if cores > there:
        raise ConfigurationError(
            f"cores is {cores}, but {platform.node()} lets a process use {there}; give at most those"
        )


def connect_worker(worker: Worker) -> None:
    """Bind this new process to its own device, before JAX starts in it."""
    global _connection
    _connection = worker
    _take_accelerator(worker.numbers.get())
    take_cores(worker.cores)
    set_up_jax()


def set_up_jax() -> None:
    """Let JAX, which is not in use yet, see one device."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    jax.config.update("jax_num_cpu_devices", 1)


def _take_accelerator(number: int) -> None:
    """Let CUDA see one accelerator, of those that it may see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
    elif visible:
        several = visible.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = several[number % len(several)]


def report_row(directory: Path, row: dict[str, Any] | None) -> None:
    """Send the parent a cell's new row, or None when the cell begins."""
    if _connection is not None:
        with _connection.lock:
            _connection.rows.send((directory, row))
