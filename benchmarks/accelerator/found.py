"""What a run found: devices, driver, versions, memory. Read in a worker, since it takes the devices into use."""

import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from benchmarks.accelerator.timing import memory_now
from benchmarks.machine import describe_machine

PACKAGES = ("jax-cuda13-plugin", "jax-cuda12-plugin", "optax", "scipy", "ml_dtypes", "jax-privacy", "dp-accounting")


def describe() -> dict[str, Any]:
    """Describe this process' devices."""
    device = jax.local_devices()[0]
    return {
        **describe_machine(),
        "platform": device.platform,
        "device": device.device_kind,
        "device_count": jax.local_device_count(),
        "driver": _driver(),
        "memory": memory_now(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm",
        "--format=csv,noheader",
    ]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
