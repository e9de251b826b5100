"""Seconds of work that devices do, which return from a call before they are done."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Seconds(NamedTuple):
    """Of several runs of the same work."""

    median: float
    least: float
    greatest: float
    runs: int

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 9) if name != "runs" else value for name, value in self._asdict().items()}


def first_seconds(run: Callable[[], Any]) -> float:
    """Time a first run: compilation, loading and the work itself."""
    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def time_runs(run: Callable[[], Any], patience: float, least: int = 3, most: int = 100, at_once: int = 1) -> Seconds:
    """Time work that has run before.

    Args:
      run: returns the arrays that the work ends with.
      patience: seconds after which no further run is begun, once there were `least`.
      least: runs that are timed in any case.
      most: runs that are timed at most.
      at_once: runs that the device is given together, so that its waiting for the host is not measured; the time is
        that of one.
    """
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < least or (len(seconds) < most and time.perf_counter() - began < patience):
        started = time.perf_counter()
        for _ in range(at_once - 1):
            run()
        jax.block_until_ready(run())
        seconds.append((time.perf_counter() - started) / at_once)
    return Seconds(statistics.median(seconds), min(seconds), max(seconds), len(seconds))


def memory_now() -> dict[str, int]:
    """Read the first device's memory: bytes in use, most ever in this process, and the limit; empty where unknown."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return {name: int(stats[name]) for name in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit") if name in stats}
