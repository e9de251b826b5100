"""Worker processes that run cells: each has one device, a CPU core of its own or an accelerator, maybe shared."""

import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.worker_processes import cpu_cores, take_cores


@dataclass(frozen=True)
class Worker:
    """What a worker process is given when it starts."""

    numbers: Any  # a queue from which each worker takes its number
    # for (cell directory, its row), None for the row when the cell begins; written at once, for what waits in a thread
    # is lost when the process of another cell is killed, and with it all
    rows: Connection
    lock: Any  # of the rows
    cores: int  # CPU cores of each
    workers: int  # how many there are


_MEMORY = {"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"}
_SHARED_MEMORY = 0.9
"""The part of a GPU's memory that the workers on it have together."""
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
            f"{setting('cores')} is {cores}, but {platform.node()} lets a process use {there}; give at most those"
        )


def connect_worker(worker: Worker) -> None:
    """Bind this new process to its device, before JAX starts in it."""
    global _connection
    _connection = worker
    os.environ.update(accelerator_of(worker.numbers.get(), worker.workers, os.environ, gpus()))
    take_cores(worker.cores)
    set_up_jax()


def set_up_jax() -> None:
    """Let JAX, which is not in use yet, see one device."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    jax.config.update("jax_num_cpu_devices", 1)


def gpus() -> int:
    """Count the NVIDIA GPUs of this machine, without a word to their driver."""
    return len([file for file in Path("/dev").glob("nvidia*") if file.name.removeprefix("nvidia").isdigit()])


def accelerator_of(number: int, workers: int, environment: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Name the variables by which CUDA and XLA let a worker see one GPU, and share it where there are more workers.

    Args:
      number: of the worker, from 0.
      workers: how many there are.
      environment: variables of the process that started them: it may see some GPUs alone, and what it says of memory
        stays.
      gpus: of the machine; where it shows none, as many are taken to be there as there are workers.

    Returns:
      What to add to the environment.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    several = (
        [str(one) for one in range(gpus or workers)] if visible is None else [one for one in visible.split(",") if one]
    )
    if not several:
        return {}
    added = {"CUDA_VISIBLE_DEVICES": several[number % len(several)]}
    sharing = math.ceil(workers / len(several))
    if sharing > 1 and not _MEMORY & set(environment):
        # Without it the first would take three quarters of the memory.
        added["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{_SHARED_MEMORY / sharing:.3f}"
    return added


def report_row(directory: Path, row: dict[str, Any] | None) -> None:
    """Send the parent a cell's new row, or None when the cell begins."""
    if _connection is not None:
        with _connection.lock:
            _connection.rows.send((directory, row))
