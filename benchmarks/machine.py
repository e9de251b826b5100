"""What a measurement must be read with: the machine and the versions."""

import os
import platform
from importlib.metadata import version

import jax


def describe_machine() -> dict:
    """Name the processor, the devices and the versions of what was measured."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": [str(device) for device in jax.local_devices()],
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "numpy")},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor()
