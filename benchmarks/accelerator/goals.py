"""What the measurements are held to: each goal, what was measured, and whether it is met."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.accelerator.cells import JAX_PRIVACY, OURS, PARITY, PEAKS, PLAIN, PRIVATE_STEPS, ROUNDS, SHARES
from benchmarks.accelerator.records import Results

ROOFLINE_GOAL, INPUT_GOAL = 0.40, 0.05
UTILIZATION_GOAL, TIME_GOAL, PEER_GOAL = 0.90, 1.25, 2.0
LARGE = 20_000_000
RECURRENT = "cifg_19m"


class Goal(NamedTuple):
    """A goal.

    Attributes:
      goal: in words, with its number.
      measured: in words; empty where nothing was.
      met: None where nothing was measured.
    """

    goal: str
    measured: str
    met: bool | None


def goals(results: Results) -> list[Goal]:
    """Hold the results of a run to the goals; of a rehearsal, those that a small model stands in for."""
    return [*_roofline(results), *_input(results), *_private(results), *_parity(results)]


def part_of_roofline(results: Results, measured: dict[str, Any], precision: str) -> float | None:
    """Divide the least time of a round by the time it took; None where the device's peaks are not known.

    The least time is that of its matrix products on the roofline, and of the bytes of parameters that local steps and
    ends of clients move beside them, at the device's bandwidth. Nothing else that a round does is granted any time.
    """
    peaks = results.measured(PEAKS)
    if not {"products", "memory"} <= peaks.keys():
        return None
    flops, bandwidth = peaks["products"]["flops_per_second"][precision], peaks["memory"]["bytes_per_second"]
    step = roofline_seconds(measured["products_a_step"], flops, bandwidth) + measured["other_bytes_a_step"] / bandwidth
    least = measured["steps"] * step + measured["clients"] * measured["bytes_a_client"] / bandwidth
    return least / measured["devices"] / measured["seconds"]["median"]


def roofline_seconds(products: Iterable[Sequence[float]], flops_per_second: float, bytes_per_second: float) -> float:
    """Compute the least time of matrix products, each (flops, bytes, how often), on the roofline (Williams et al.
    2009).

    Each takes as long as the slower of the two: its arithmetic at the device's rate, or its bytes at the device's
    bandwidth.
    """
    return sum(n * max(flops / flops_per_second, size / bytes_per_second) for flops, size, n in products)


def private_cases(results: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """Group private steps: by model, precision and batch, the result of each kind."""
    cases: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name, measured in results.measured(PRIVATE_STEPS).items():
        case, _, kind = name.rpartition(", ")
        cases[case][kind] = measured
    return dict(cases)


def best_private(case: dict[str, dict[str, Any]]) -> str | None:
    """Name our fastest method of a case."""
    return min((kind for kind in OURS if kind in case), key=lambda kind: seconds(case[kind]), default=None)


def seconds(measured: dict[str, Any]) -> float:
    return measured["seconds"]["median"]


def utilization(results: Results, case: str, measured: dict[str, Any]) -> float | None:
    """Compute the model FLOPs utilization against the rate of large products in the case's precision."""
    products = results.measured(PEAKS).get("products")
    if products is None:
        return None
    rate = products["flops_per_second"][case.split(", ")[1]] * measured["devices"]
    return measured["tokens_per_second"] * measured["model_flops_a_token"] / rate


def shares_of_rounds(results: Results) -> dict[str, dict[str, float]]:
    """Name the parts of the time of each round that was taken apart."""
    return {name: one["shares"] for name, one in results.measured(SHARES).items() if "shares" in one}


def outside_bounds(parity: dict[str, Any]) -> list[str]:
    """Name the precisions in which a comparison with the CPU is outside its bound."""
    return [policy for policy, within in parity["within"].items() if not within]


def _roofline(results: Results) -> list[Goal]:
    goal = f"a round of {RECURRENT} takes at least {ROOFLINE_GOAL:.0%} of the roofline"
    found = {
        name: part
        for name, measured in results.measured(ROUNDS).items()
        if name.startswith(RECURRENT) and (part := part_of_roofline(results, measured, name.split(", ")[1])) is not None
    }
    if not found:
        return [Goal(goal, "", None)]
    rounds = results.measured(ROUNDS)
    fastest = max(found, key=lambda name: rounds[name]["clients_per_second"])
    return [Goal(goal, f"{found[fastest]:.1%} ({fastest}, the fastest)", found[fastest] >= ROOFLINE_GOAL)]


def _input(results: Results) -> list[Goal]:
    goal = f"input takes less than {INPUT_GOAL:.0%} of a round"
    shares = {name: shares["input"] for name, shares in shares_of_rounds(results).items()}
    if not shares:
        return [Goal(goal, "", None)]
    return [Goal(f"{goal}: {name}", f"{share:.1%}", share < INPUT_GOAL) for name, share in shares.items()]


def _private(results: Results) -> list[Goal]:
    found = []
    for name, case in private_cases(results).items():
        best = best_private(case)
        large = any(one["parameters"] >= LARGE for one in case.values()) and not name.startswith("cifg")
        if best is None or not large:
            continue
        if PLAIN in case:
            ratio = seconds(case[best]) / seconds(case[PLAIN])
            of_plain = f"private steps have at least {UTILIZATION_GOAL:.0%} of the plain step's MFU: {name}"
            found.append(Goal(of_plain, f"{1 / ratio:.1%} ({best})", 1 / ratio >= UTILIZATION_GOAL))
            times = f"private steps take at most {TIME_GOAL} x the plain step's time: {name}"
            found.append(Goal(times, f"{ratio:.2f} x ({best})", ratio <= TIME_GOAL))
        if JAX_PRIVACY in case:
            faster = seconds(case[JAX_PRIVACY]) / seconds(case[best])
            peer = f"private steps are at least {PEER_GOAL:g} x as fast as jax-privacy's best: {name}"
            found.append(Goal(peer, f"{faster:.2f} x ({best})", faster >= PEER_GOAL))
    if not found:
        return [
            Goal(
                f"private steps of Transformers of 20 M and more: at least {UTILIZATION_GOAL:.0%} of the plain step's "
                f"MFU, at most {TIME_GOAL} x its time, {PEER_GOAL:g} x as fast as jax-privacy's best",
                "",
                None,
            )
        ]
    return found


def _parity(results: Results) -> list[Goal]:
    goal = "the accelerator computes what the CPU does, within the bounds of each precision"
    measured = results.measured(PARITY)
    if not measured:
        return [Goal(goal, "", None)]
    outside = [f"{name} in {policy}" for name, one in measured.items() for policy in outside_bounds(one)]
    words = f"{len(measured)} comparisons" + (f", outside: {', '.join(outside)}" if outside else ", all within")
    return [Goal(goal, words, not outside)]
