"""What exact sums and secret noise cost: their share of a simulated round, beside what plain sums and noise would cost.

fedlm's private sums (each update rounded to a grid, integers added, ChaCha20 noise in float64) are timed beside plain
ones, which are kept here alone: sums of float32 numbers and `jax.random.normal` in float32, whose noise ends at 5.4
standard deviations and has a key of 64 bits. A cohort is trained by the engine and its sum released, as a whole round;
adding up so many updates, and the release, are timed alone in both ways, in turn, since a difference of two long times
says little. Shares are those of a round with the same training and the way's own parts. All numbers are medians. CPU
seconds, of all threads, are less disturbed by other programs than seconds are.

    python -m benchmarks.privacy.round_cost

It takes less than five minutes on two cores. Run it when nothing else runs.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.exact_sums import summed
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    CohortAggregate,
    add_aggregates,
    contribution,
    empty_aggregate,
)
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.models.registry import create_model
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine

RESULTS = Path(__file__).parent / "results"
VOCABULARY, LENGTH, BATCH = 10_000, 20, 16
CLIP_NORM, NOISE_MULTIPLIER = 0.5, 1.0
GOAL = 5.0
PARTS_A_PASS = 4
"""How often the parts are timed while rounds are timed once."""
COHORTS = {"cifg_1m": 50, "transformer_11m": 20}
"""Clients of a round, each of them with as many examples as `--examples` says."""
NOW, PLAIN = "exact sums, ChaCha20 noise", "plain sums and noise"


class Way(NamedTuple):
    """One way to make private sums."""

    rules: AggregationRules
    release: Callable[[CohortAggregate], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(COHORTS))
    parser.add_argument("--clients", type=int, help="of a round, in place of those of each model")
    parser.add_argument("--examples", type=int, default=128, help="of each client")
    parser.add_argument("--passes", type=int, default=2, help="how often rounds are timed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 1)
    record = {
        "machine": describe_machine(),
        "models": {
            name: measure(name, arguments.clients or COHORTS.get(name, 10), arguments.examples, arguments.passes)
            for name in arguments.models
        },
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "round_cost.json", json.dumps(record, indent=2) + "\n")
    plot(record).savefig(arguments.results / "round_cost.png", dpi=120)
    print(json.dumps(record, indent=2))


def measure(name: str, clients: int, examples: int, passes: int) -> dict[str, Any]:
    """Time rounds of a model, and their parts, in both ways."""
    model = create_model(name, VOCABULARY)
    params = jax.block_until_ready(model.init(jax.random.key(0)))
    data = made_up_clients(clients, examples)
    ways = {NOW: private_way(params, clients), PLAIN: plain_way(params, clients)}
    calls = {"round": round_of(model, params, data, ways[NOW])}
    for label, way in ways.items():
        calls |= {f"{part}, {label}": call for part, call in parts_of(params, clients, way).items()}
    times: dict[str, list[tuple[float, float]]] = {part: [] for part in calls}
    for number in range(passes + 1):
        for part, call in calls.items():
            found = [timed(call) for _ in range(1 if part == "round" or not number else PARTS_A_PASS)]
            # The first pass compiles.
            times[part] += found if number else []
    seconds, cpu = (
        {part: statistics.median(one[kind] for one in found) for part, found in times.items()} for kind in (0, 1)
    )
    shares, of_cpu = shares_of(seconds), shares_of(cpu)
    result = {
        "parameters": sum(leaf.size for leaf in jax.tree_util.tree_leaves(params)),
        "clients": clients,
        "local_steps": clients * -(-examples // BATCH),
        "seconds": {part: round(value, 4) for part, value in seconds.items()},
        "cpu_seconds": {part: round(value, 4) for part, value in cpu.items()},
        "percent_of_round": shares,
        "percent_of_cpu_seconds": of_cpu,
        "percent_more": round(shares[NOW] - shares[PLAIN], 2),
    }
    print(json.dumps({name: result}), flush=True)
    return result


def shares_of(times: dict[str, float]) -> dict[str, float]:
    """Compute which share of a round the sum and its release are, in per cent, in each way."""
    parts = {label: times[f"sum, {label}"] + times[f"release, {label}"] for label in (NOW, PLAIN)}
    training = times["round"] - parts[NOW]
    return {label: round(100 * own / (training + own), 2) for label, own in parts.items()}


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and CPU seconds of all threads."""
    started, busy = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - started, time.process_time() - busy


def private_way(params: Any, clients: int) -> Way:
    """What fedlm does."""
    plan = PrivacyPlan("gaussian", 1_000_000, NOISE_MULTIPLIER, BoundedParticipation(None, 1))
    rounds = PrivateRounds(PrivateAggregation(plan, CLIP_NORM, clients), fresh_secret(), params)
    state = rounds.init()
    return Way(AggregationRules("uniform", exact=True), lambda total: rounds.next(state, total, 0).delta)


def plain_way(params: Any, clients: int) -> Way:
    """Sums and noise of 32 bits, with a key of 64 bits; no guarantee could be made of them."""

    @jax.jit
    def release(total: Any, key: jax.Array) -> Any:
        leaves, structure = jax.tree_util.tree_flatten(total)
        keys = jax.random.split(key, len(leaves))
        scale = NOISE_MULTIPLIER * CLIP_NORM
        noised = [
            (leaf + scale * jax.random.normal(one, leaf.shape)) / clients
            for leaf, one in zip(leaves, keys, strict=True)
        ]
        return jax.tree_util.tree_unflatten(structure, noised)

    return Way(AggregationRules("uniform"), lambda total: release(total.delta, jax.random.key(1)))


def round_of(model: Any, params: Any, data: InMemoryData, way: Way) -> Callable[[], Any]:
    """Train a cohort and release its sum."""
    work = ClientWork(model, LocalTraining(batch_size=BATCH), make_compressor("uniform8"), way.rules)
    engine = CohortEngine(work, data, LENGTH)
    plan = RoundPlan(0, np.arange(len(data.num_examples)), 0, 0.1)
    return lambda: way.release(engine.run(params, plan, CLIP_NORM).aggregate)


def parts_of(params: Any, clients: int, way: Way) -> dict[str, Callable[[], Any]]:
    """Add up as many updates as a cohort has, and release their sum, without any training."""
    update = jax.tree_util.tree_map(lambda leaf: 0.01 * jax.random.normal(jax.random.key(2), leaf.shape), params)
    empty = functools.partial(jax.jit(empty_aggregate, static_argnums=1), params, way.rules.exact)

    @functools.partial(jax.jit, donate_argnums=0)
    def add(total: CohortAggregate, update: Any) -> CohortAggregate:
        one = contribution(update, jnp.float32(1), TrainingSums.zero(), way.rules, clip_norm=CLIP_NORM)
        # As the engine does it, which has an axis of lanes.
        return add_aggregates(total, summed(jax.tree_util.tree_map(lambda leaf: leaf[None], one)))

    def added() -> CohortAggregate:
        total = empty()
        for _ in range(clients):
            total = add(total, update)
        return total

    one = added()
    return {"sum": added, "release": lambda: way.release(one)}


def made_up_clients(clients: int, examples: int) -> InMemoryData:
    """Clients with random sentences of the longest length."""
    rng = np.random.default_rng(0)
    return InMemoryData([rng.integers(4, VOCABULARY, (examples, LENGTH + 1), np.int32) for _ in range(clients)])


def plot(record: dict[str, Any]) -> Figure:
    """Draw the shares of a round."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots(1, 1)
    models = record["models"]
    for index, label in enumerate((PLAIN, NOW)):
        shares = [found["percent_of_round"][label] for found in models.values()]
        bars = axes.barh(np.arange(len(models)) + 0.35 * index, shares, 0.32, label=label)
        axes.bar_label(bars, [f"{share:.1f} %" for share in shares], padding=3, fontsize=8)
    names = [f"{name}\n{found['parameters'] / 1e6:.1f} M, {found['clients']} clients" for name, found in models.items()]
    axes.set_yticks(np.arange(len(models)) + 0.17, names, fontsize=8)
    axes.axvline(GOAL, color="#888", linewidth=0.8, linestyle=":")
    axes.set_xlabel("of a whole round, per cent (dotted: the goal)", fontsize=8)
    axes.set_title("What adding up updates and making noise takes of a round", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=8, loc="center right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
