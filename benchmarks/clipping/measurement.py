"""Finding the best setting of each kind of step, timing those in turn, and summing up."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.clipping.steps import JAX_PRIVACY, PLAIN
from benchmarks.simulation.comparing import pass_ratios, spread

SWEEP_RUNS = 3
GIVE_UP = 1.5
"""A sweep over growing microbatches ends when two in a row take this many times as long as the best."""
FINALISTS = 2
MEMORY_LIMIT = 1.3
"""Of our private steps those count that need no more than so many times the memory of the non-private one."""
LIMITED = ("bookkeeping", "ghost", "vmap")
TORCH_PLAIN = "torch_plain"


class Candidate(NamedTuple):
    """A kind of step in one setting.

    Attributes:
      kind: what it computes, and with what.
      microbatch: examples that are differentiated at a time, on each device.
      devices: how many share the batch; None where that is not ours to say.
      start: gets it ready, and gives a function that runs it once and returns its seconds.
    """

    kind: str
    microbatch: int
    devices: int | None
    start: Callable[[], "Started"]

    @property
    def name(self) -> str:
        """The kind and its setting."""
        devices = "" if self.devices is None else f", {self.devices} device{'s' if self.devices > 1 else ''}"
        return f"{self.kind}, {self.microbatch} at a time{devices}"


class Started(NamedTuple):
    """A candidate that is ready.

    Attributes:
      seconds: runs it once and says how long that took.
      facts: what else is known of it, for JSON.
    """

    seconds: Callable[[], float]
    facts: dict[str, Any]


class Trial(NamedTuple):
    """A candidate's time in the sweep."""

    candidate: Candidate
    started: Started
    seconds: float


def sweep(candidates: Iterable[Candidate]) -> list[Trial]:
    """Try candidates of one kind, by their devices, then by growing microbatches: each with its least time."""
    trials: list[Trial] = []
    for _, group in itertools.groupby(candidates, key=lambda candidate: candidate.devices):
        slow = 0
        for candidate in group:
            started = candidate.start()
            started.seconds()
            seconds = min(started.seconds() for _ in range(SWEEP_RUNS))
            trials.append(Trial(candidate, started, seconds))
            slow = slow + 1 if seconds > GIVE_UP * min(trial.seconds for trial in trials) else 0
            if slow == 2:
                break
    return trials


def finalists(trials: Sequence[Trial], most_memory: float = math.inf) -> list[Trial]:
    """Choose those of one kind's trials that are timed in turn.

    Returns:
      The fastest, of ours that keep to `most_memory` MiB if any do; of jax-privacy also its fastest with a microbatch
      of one, and with the largest that was tried.
    """
    ranked = sorted(trials, key=lambda trial: (not _fits(trial, most_memory), trial.seconds))
    chosen = ranked[:FINALISTS]
    if trials and trials[0].candidate.kind == JAX_PRIVACY:
        for microbatch in (1, max(trial.candidate.microbatch for trial in trials)):
            chosen += [trial for trial in ranked if trial.candidate.microbatch == microbatch][:1]
    return list({trial.candidate.name: trial for trial in chosen}.values())


def memory_limit(trials: Iterable[Trial]) -> float:
    """Say how many MiB are granted to private steps: `MEMORY_LIMIT` times the memory of the fastest non-private one.

    It is infinite where none is known.
    """
    plain = [trial for trial in trials if trial.candidate.kind == PLAIN and "memory_mib" in trial.started.facts]
    if not plain:
        return math.inf
    return MEMORY_LIMIT * min(plain, key=lambda trial: trial.seconds).started.facts["memory_mib"]


def _fits(trial: Trial, most_memory: float) -> bool:
    return trial.candidate.kind not in LIMITED or trial.started.facts.get("memory_mib", 0.0) <= most_memory


def run_passes(chosen: Sequence[Trial], passes: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Time all that were chosen, in one order and in the reverse order by turns: seconds by name."""
    seconds: dict[str, list[float]] = {trial.candidate.name: [] for trial in chosen}
    for number in range(passes):
        say(f"pass {number + 1} of {passes}")
        for trial in chosen[:: -1 if number % 2 else 1]:
            seconds[trial.candidate.name].append(trial.started.seconds())
    return seconds


def summarize(trials: Sequence[Trial], seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Sum up.

    Args:
      trials: of all kinds.
      seconds: of `run_passes`.

    Returns:
      A tree for JSON: the best of each kind by its median (of ours that keep to the memory, if any do), ratios to the
      best of `plain`, of jax-privacy and of PyTorch, pass by pass, and the whole sweep.
    """
    by_name, most = {trial.candidate.name: trial for trial in trials}, memory_limit(trials)
    best: dict[str, str] = {}
    for name in sorted(seconds, key=lambda name: (not _fits(by_name[name], most), statistics.median(seconds[name]))):
        best.setdefault(by_name[name].candidate.kind, name)

    def over(reference: str) -> dict[str, dict[str, float]]:
        if reference not in best:
            return {}
        ratios = {kind: pass_ratios(seconds[name], seconds[best[reference]]) for kind, name in best.items()}
        return {
            kind: {key: round(value, 3) for key, value in ratio._asdict().items()}
            for kind, ratio in ratios.items()
            if ratio and kind != reference
        }

    return {
        "best": {kind: _facts(by_name[name]) | _spread(seconds[name]) for kind, name in best.items()},
        "over_plain": over(PLAIN),
        "over_jax_privacy": over(JAX_PRIVACY),
        "over_torch_plain": over(TORCH_PLAIN),
        "memory_over_plain": _memory(trials, {kind: by_name[name] for kind, name in best.items()}),
        "seconds": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
        "sweep": [_facts(trial) | {"seconds": round(trial.seconds, 4)} for trial in trials],
    }


def _facts(trial: Trial) -> dict[str, Any]:
    candidate = trial.candidate
    return {
        "kind": candidate.kind,
        "microbatch": candidate.microbatch,
        "devices": candidate.devices,
        **trial.started.facts,
    }


def _spread(seconds: Sequence[float]) -> dict[str, Any]:
    return {key: round(value, 4) for key, value in spread(seconds)._asdict().items()}


def _memory(trials: Sequence[Trial], best: dict[str, Trial]) -> dict[str, dict[str, float]]:
    """Peak memory over that of the non-private step: each in its best setting, and in the same setting."""
    known = {
        (*trial.candidate[:3],): trial.started.facts["memory_mib"]
        for trial in trials
        if "memory_mib" in trial.started.facts
    }
    ratios: dict[str, dict[str, float]] = {}
    for kind, trial in best.items():
        used = trial.started.facts.get("memory_mib")
        if used is None or kind == PLAIN or PLAIN not in best:
            continue
        ratios[kind] = {"best_settings": round(used / best[PLAIN].started.facts["memory_mib"], 3)}
        same = known.get((PLAIN, *trial.candidate[1:3]))
        if same:
            ratios[kind]["same_setting"] = round(used / same, 3)
    return ratios
