"""Joining several processes, of one machine or of many, that run one command together."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedlm.command_line.options import set_up_devices
from fedlm.fedlm_client.link.host_and_port import AddressError, read_address
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, CountOrZero

AUTOMATIC = "auto"
_JOINING_SECONDS, _LEAVING_SECONDS = 300, 10


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The processes and devices that run a command together."""

    coordinator: str | None = None
    """HOST:PORT at which process 0 waits for the others; or auto, if JAX itself finds out which processes there are
    (SLURM, Open MPI, Cloud TPU)."""
    num_processes: Count | None = None
    """Number of processes that run this together."""
    process_id: CountOrZero | None = None
    """Number of this process, from 0."""
    devices: Count | None = None
    """Devices that each process uses (CPU cores without an accelerator). If not given, all."""


def join_processes(group: ProcessGroup) -> None:
    """Join the other processes, if there are any, and make JAX see the devices wanted. Call it before JAX is used.

    Raises:
      ConfigurationError: the options do not fit, or the processes cannot be joined.
    """
    _check(group)
    if group.coordinator is None:
        return set_up_devices(group.devices)
    import jax

    # JAX would take SIGTERM for the notice of a preemption, and the process would not end.
    jax.config.update("jax_enable_preemption_service", False)
    with _warning_before(_JOINING_SECONDS, group):
        try:
            if group.coordinator == AUTOMATIC:
                jax.distributed.initialize(initialization_timeout=_JOINING_SECONDS)
            else:
                jax.distributed.initialize(
                    group.coordinator, group.num_processes, group.process_id, initialization_timeout=_JOINING_SECONDS
                )
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(_why_not_joined(group, error)) from error
    set_up_devices(group.devices)
    _connect_devices()


def has_joined() -> bool:
    """Say whether this process has joined others."""
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def missing_platform() -> str | None:
    """Say that the environment asks JAX for devices that it does not find; None where it finds some, or is not used."""
    wanted = os.environ.get("JAX_PLATFORMS")
    if not wanted or "jax" not in sys.modules:
        return None
    try:
        sys.modules["jax"].devices()
    except (RuntimeError, AssertionError):
        return (
            f"the environment has JAX_PLATFORMS={wanted}, but JAX finds no such device: this machine has none, or "
            "JAX is installed without what it needs; leave JAX_PLATFORMS out, or give cpu"
        )
    return None


def leave_processes(status: int, with_others: bool) -> None:
    """End this process after an error, if it has joined others; at its regular end it would wait for them for minutes.

    Args:
      status: its exit status.
      with_others: give the others, which may have found the same error, a few seconds to end by themselves. They would
        be aborted when process 0 ends before them.
    """
    if not has_joined():
        return
    if with_others:
        farewell = threading.Thread(target=sys.modules["jax"].distributed.shutdown, daemon=True)
        farewell.start()
        farewell.join(_LEAVING_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _check(group: ProcessGroup) -> None:
    numbers = (group.num_processes, group.process_id)
    if group.coordinator == AUTOMATIC:
        if numbers != (None, None):
            raise ConfigurationError(
                f"with the coordinator auto, JAX finds {setting('num_processes')} and {setting('process_id')} itself; "
                "leave them out"
            )
        return
    if (group.coordinator is None) != (None in numbers) or (group.coordinator is None and numbers != (None, None)):
        raise ConfigurationError(
            f"coordinator, {setting('num_processes')} and {setting('process_id')} belong together; give all three, or "
            "none of them"
        )
    if group.coordinator is None or group.num_processes is None or group.process_id is None:
        return
    try:
        read_address(group.coordinator)
    except AddressError as error:
        raise ConfigurationError(
            f"{setting('coordinator')} is {group.coordinator!r}, but must be HOST:PORT, such as 10.0.0.1:8480 or "
            "[fd00::1]:8480, or auto"
        ) from error
    if not 0 <= group.process_id < group.num_processes:
        raise ConfigurationError(
            f"{setting('process_id')} is {group.process_id}, but must lie between 0 and {setting('num_processes')} - "
            f"1, which is {group.num_processes - 1}"
        )


def _why_not_joined(group: ProcessGroup, error: Exception) -> str:
    reason = str(error).splitlines()[0]
    if group.coordinator == AUTOMATIC:
        return (
            f"JAX does not find the processes of this cluster by itself ({reason}); give {setting('coordinator')}, "
            f"{setting('num_processes')} and {setting('process_id')}"
        )
    return f"the processes cannot be joined at {group.coordinator} ({reason}); is the port of process 0 free?"


@contextmanager
def _warning_before(seconds: float, group: ProcessGroup) -> Iterator[None]:
    """Say what is wrong before JAX, which cannot be told to go on, aborts the process for want of the others."""
    message = (
        f"fedlm: after {seconds:.0f} seconds not all processes have joined at {group.coordinator}; start each one, "
        "with a process_id of its own, and let it reach that address"
    )
    warning = threading.Timer(max(seconds - 2, 1), lambda: print(message, file=sys.stderr, flush=True))
    warning.daemon = True
    warning.start()
    try:
        yield
    finally:
        warning.cancel()


def _connect_devices() -> None:
    """Exchange first messages between all devices, and in the groups in which they sum up."""
    import jax

    from fedlm.fl_core.processes import gather
    from fedlm.simulations.engine.device_sums import connect_devices

    counts = Counter(device.process_index for device in jax.devices()).values()
    if len(set(counts)) > 1:
        raise ConfigurationError(
            f"the processes have {', '.join(map(str, counts))} devices, but must have equally many; give --devices"
        )
    # The devices must meet for the first time within 30 seconds, so they do it now, when no process is far ahead.
    with _without_stdout():
        gather(None)
        connect_devices()


@contextmanager
def _without_stdout() -> Iterator[None]:
    """Discard what libraries in C++ print."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
