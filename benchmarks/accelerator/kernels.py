"""On what a device spends the time of a step, kernel by kernel, and of a round.

A kernel is one operation of the compiled program, whose text says which part of the step it belongs to: the gradient,
the norms of the units' gradients, or the weighted sums (`jax.named_scope` in `fedlm.fl_core.clipping.methods`), and
which types it multiplies. Command buffers hide single kernels from the profiler, so that a run with profiles needs
`XLA_FLAGS=--xla_gpu_enable_command_buffer=`.
"""

import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from benchmarks.accelerator.private_steps import build
from benchmarks.accelerator.timing import first_seconds
from benchmarks.clipping.steps import Setting, compile_step, draw_batch
from fedlm.models.precision import Precision, precision_scope, with_precision

DEVICE_PLANE, STREAM = "/device:", "Stream"
PARTS = ("norms", "weighted_sums")
"""Scopes of `clipped_sum`; everything else of a step is its gradient."""
LISTED = 40
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<shape>\(?\w+\[[\d,]*\]).*?op_name=\"(?P<scope>[^\"]*)\""
)


def measure(
    model: str,
    precision: Precision,
    kind: str,
    examples: int,
    length: int,
    vocabulary: int | None,
    microbatch: int,
) -> dict[str, Any]:
    """Profile one kind of step; arguments are those of `private_steps.measure`, but for one size of microbatch."""
    built = with_precision(build(model, vocabulary), precision)
    params, batch = built.init(jax.random.key(0)), draw_batch(built, examples, length)
    with precision_scope(precision):
        step = compile_step(built, params, batch, Setting(kind, microbatch, jax.local_device_count()))
        first_seconds(step.run)
        return profile_of(step.run, step.program() or "")


def profile_of(run: Callable[[], Any], program: str = "") -> dict[str, Any]:
    """Profile work that has run before.

    Args:
      run: the work.
      program: the compiled program's text, which says what its operations belong to.

    Returns:
      What `busy_of` says.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (path,) = Path(folder).rglob("*.xplane.pb")
        # Its planes are views of it.
        profiled = jax.profiler.ProfileData.from_file(str(path))
        return busy_of(profiled.planes, operations_of(program))


def operations_of(program: str) -> dict[str, tuple[str, str]]:
    """Read from a compiled program's text what each operation makes, and its scope."""
    found = (_INSTRUCTION.match(line) for line in program.splitlines())
    return {one["name"]: (one["shape"], one["scope"]) for one in found if one}


def busy_of(planes: Iterable[Any], operations: dict[str, tuple[str, str]] | None = None) -> dict[str, Any]:
    """Sum up the streams of the first device of a profile.

    Returns:
      `idle`, the share of the time in which no stream worked; `kernels`, how many ran; `parts`, shares of the kernels'
      time by part of the step; `longest`, for each of the longest operations its name, kernel, what it makes, scope,
      share and number of runs. Only a `reason` where the profile has no streams.
    """
    for plane in planes:
        if plane.name.startswith(DEVICE_PLANE):
            events = [
                (event.start_ns, event.start_ns + event.duration_ns, dict(event.stats).get("hlo_op", ""), event.name)
                for line in plane.lines
                if line.name.startswith(STREAM)
                for event in line.events
            ]
            if events:
                return _busy(events, operations or {})
    return {"reason": "the profile has no streams of a device"}


def _busy(events: list[tuple[float, float, str, str]], operations: dict[str, tuple[str, str]]) -> dict[str, Any]:
    events.sort()
    first, busy, end = events[0][0], 0.0, events[0][0]
    spent: dict[tuple[str, str], list[float]] = {}
    for begins, ends, operation, kernel in events:
        busy += max(0.0, ends - max(begins, end))
        end = max(end, ends)
        spent.setdefault((operation, kernel), []).append(ends - begins)
    total = sum(map(sum, spent.values()))
    parts: dict[str, float] = {}
    listed = []
    for (operation, kernel), times in sorted(spent.items(), key=lambda item: -sum(item[1])):
        made, scope = operations.get(operation, ("", ""))
        part = next((part for part in PARTS if f"/{part}/" in f"{scope}/"), "gradient" if scope else "unknown")
        parts[part] = parts.get(part, 0.0) + sum(times) / total
        one = {"operation": operation, "kernel": kernel[:80], "makes": made, "scope": scope}
        listed.append(one | {"share": round(sum(times) / total, 4), "runs": len(times)})
    idle = 1 - busy / (end - first) if end > first else 0.0
    return {"idle": idle, "kernels": len(events), "parts": parts, "longest": listed[:LISTED]}
