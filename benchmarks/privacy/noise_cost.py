"""What noise costs: seconds and memory of a round's noise, of each mechanism, against one plain Gaussian draw.

For each number of parameters the mechanisms and the plain draw (`jax.random.normal` of as many values) run in turn. A
mechanism is timed over a block of rounds, since a tree draws more in some rounds than in others: over any power of two
almost twice the rounds. State is what stays in memory between rounds, at its largest within the planned rounds. The
accountant's times are those of whole questions, without anything remembered.

    python -m benchmarks.privacy.noise_cost

Run it when nothing else runs.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.mechanisms.bisr import inverse_square_root
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan

RESULTS = Path(__file__).parent / "results"
ROUNDS = 3000
PARTICIPATION = BoundedParticipation(10, 300)
BLT = (0.99, 0.9, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1)
BANDS = 8
CONTESTANTS = [
    name
    for name, mechanism in MECHANISMS.items()
    if (mechanism.most_rounds or ROUNDS) >= ROUNDS and not mechanism.distributed
]
QUESTIONS = {
    "tree, T 3000, k 10, b 300": ("tree", 3000, BoundedParticipation(10, 300)),
    "tree, T 3000, k 10, b 1": ("tree", 3000, BoundedParticipation(10, 1)),
    "tree, T 2000, k 6, b 300": ("tree", 2000, BoundedParticipation(6, 300)),
    "gaussian, Poisson, T 3000": ("gaussian", 3000, PoissonParticipation(0.01)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 20e6])
    parser.add_argument("--mechanisms", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--block", type=int, default=16, help="rounds that are timed together, a power of two")
    parser.add_argument("--passes", type=int, default=3, help="how often each is timed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    record = {
        "machine": describe_machine(),
        "noise": [measure_size(int(size), arguments) for size in arguments.parameters],
        "accountant_seconds": {name: time_question(*question) for name, question in QUESTIONS.items()},
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "noise_cost.json", json.dumps(record, indent=2) + "\n")
    plot(record).savefig(arguments.results / "noise_cost.png", dpi=120)
    print(json.dumps(record, indent=2))


def plan_of(mechanism: str) -> PrivacyPlan:
    """Make a plan of each mechanism without optimizing its coefficients, of which only the number matters here."""
    if mechanism == "dense":
        # The root of the matrix of prefix sums (Fichtenberger et al. 2023), written out row by row.
        rounds = MECHANISMS[mechanism].most_rounds
        root = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, rounds))])
        rows = tuple(float(value) for number in range(1, rounds + 1) for value in root[:number][::-1])
        return PrivacyPlan(mechanism, rounds, 1.0, BoundedParticipation(1, rounds), coefficients=rows)
    chosen = {"blt": BLT, "banded": tuple(0.5**band for band in range(BANDS)), "bisr": inverse_square_root(32)}
    coefficients = chosen.get(mechanism, ())
    return PrivacyPlan(mechanism, ROUNDS, 1.0, PARTICIPATION, coefficients=coefficients)


def measure_size(parameters: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time all mechanisms in turn on one number of parameters."""
    like = {"x": np.zeros((parameters // 1000, 1000), np.float32)}
    draw = noise_from(fresh_secret(), like)
    plain = jax.jit(lambda key: jax.random.normal(key, like["x"].shape))
    contestants = {"plain draw": lambda: seconds_of(lambda: plain(jax.random.key(1)), 4)}
    for name in arguments.mechanisms:
        contestants[name] = lambda name=name: time_block(name, like, draw, arguments.block)
    for contestant in contestants.values():
        contestant()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(arguments.passes):
        for name, contestant in contestants.items():
            times[name].append(contestant())
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {
        "parameters": parameters,
        "seconds_a_round": {name: round(value, 5) for name, value in medians.items()},
        "draws_worth": {name: round(value / medians["plain draw"], 2) for name, value in medians.items()},
        "state_mib": {name: round(state_bytes(name, like) / 2**20, 1) for name in arguments.mechanisms},
    }
    print(json.dumps(result), flush=True)
    return result


def time_block(name: str, like: Any, draw: Any, block: int) -> float:
    """Seconds a round, over a block; of noise that draws earlier rounds again, one round in the middle of all."""
    plan, draws_again = plan_of(name), name in ("dense", "bisr")
    mechanism = make_noise(plan)
    state = mechanism.init(like)
    if draws_again:
        # Their state is the next round's number.
        state, block = jax.tree_util.tree_map(lambda _: np.asarray(plan.rounds // 2), state), 1
    started = time.perf_counter()
    for _ in range(block):
        noise, state = mechanism.next(state, draw)
    jax.block_until_ready((noise, state))
    return (time.perf_counter() - started) / block


def seconds_of(call: Callable[[], Any], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(call())
    return (time.perf_counter() - started) / times


def state_bytes(name: str, like: Any) -> int:
    """The most that a mechanism keeps between rounds."""
    if name == "tree_honaker":
        deepest = max(range(1, ROUNDS + 1), key=lambda number: number.bit_count())
        return deepest.bit_count() * 8 * like["x"].size
    return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(make_noise(plan_of(name)).init(like)))


def time_question(mechanism: str, rounds: int, participation: Any) -> float:
    """Seconds of one statement."""
    # Measured without the accountant, noise needs none of its packages.
    from fedlm.fl_core.privacy.promise.guarantee import account

    plan = PrivacyPlan(mechanism, rounds, 7.0, participation)
    started = time.perf_counter()
    account(plan, 1e-8)
    return round(time.perf_counter() - started, 3)


def plot(record: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots(1, 1)
    names = list(record["noise"][0]["draws_worth"])
    for index, size in enumerate(record["noise"]):
        places = np.arange(len(names)) + index * 0.27
        bars = axes.bar(
            places,
            [size["draws_worth"][name] for name in names],
            width=0.25,
            label=f"{size['parameters'] / 1e6:g} M parameters",
        )
        axes.bar_label(bars, [f"{size['draws_worth'][name]:.1f}" for name in names], fontsize=8)
    axes.set_xticks(np.arange(len(names)) + 0.27, [name.replace("_", "\n") for name in names])
    axes.set_ylabel("plain Gaussian draws")
    axes.set_title("Cost of a round's noise: less is better", fontsize=11)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
