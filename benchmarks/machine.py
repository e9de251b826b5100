"""What a measurement must be read with: the commit, the machine and the versions."""

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax


def describe_machine() -> dict:
    """Name the commit, the processor, the devices and the versions of what was measured."""
    return {
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": [str(device) for device in jax.local_devices()],
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "numpy")},
    }


def _commit() -> str | None:
    """The last commit that changed the product, `with changes` where its files differ from it; None without git."""
    product = [f":(top){folder}" for folder in ("clients", "fedlm", "fl_core", "models", "simulations")]
    try:
        commit = _git("log", "-1", "--format=%h", "--", *product).strip()
        changed = _git("status", "--porcelain", "--", *product)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit} with changes" if changed else commit


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor()


def measured_before(path: Path, now: dict[str, Any], part: str, nothing: Any) -> Any:
    """Read what an earlier run measured, so that one thing can be measured again and the others are kept.

    Args:
      path: of its JSON.
      now: record of this run, with `machine` and `setting`.
      part: of the record that is wanted.
      nothing: what to return where there is none, or it is of another machine or setting.
    """
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    same = all(before.get(name) == now[name] for name in ("machine", "setting"))
    return before[part] if same else nothing
