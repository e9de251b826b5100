"""The cohort engine against a bare jitted loop of the same number of SGD steps.

The bare loop knows nothing of clients: one compiled program takes all steps on batches that already lie on the
device. Both train the same model shape on 50 clients of lognormal size with 8-bit uploads for the engine; they run
in turn, and the ratio is taken pair by pair. Run it when nothing else runs:

    python -m benchmarks.simulation.engine_against_bare_loop
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from fl_core.aggregation import AggregationRules
from fl_core.compression import make_compressor
from fl_core.local_sgd import LocalTraining, local_step
from fl_core.round_loop import RoundPlan
from models.base import Batch
from models.registry import create_model
from simulations.cohort_engine import ClientWork, CohortEngine
from simulations.federated_data import InMemoryData

CLIENTS, LENGTH, VOCABULARY, BATCH = 50, 20, 4096, 10
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cifg_1m", "si_cifg_1m", "transformer_1m", "si_transformer_1m"])
    parser.add_argument("--pairs", type=int, default=5, help="how often each of the two is timed")
    arguments = parser.parse_args()
    measured = {name: measure(name, arguments.pairs) for name in arguments.models}
    results = {"machine": describe_machine(), "setting": setting(), "models": measured}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "engine_against_bare_loop.json").write_text(json.dumps(results, indent=2) + "\n")
    plot(measured).savefig(RESULTS / "engine_against_bare_loop.png", dpi=120)
    print(json.dumps(results, indent=2))


def setting() -> str:
    return f"{CLIENTS} clients of lognormal size (2 to 200 sentences), batches of {BATCH} x {LENGTH} tokens"


def measure(name: str, pairs: int) -> dict:
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(3.2, 1.1, CLIENTS).astype(int), 2, 200)
    data = InMemoryData([rng.integers(4, VOCABULARY, (size, LENGTH + 1)).astype(np.int32) for size in sizes])
    model = create_model(name, VOCABULARY)
    params = model.init(jax.random.key(0))
    training = LocalTraining(batch_size=BATCH)
    engine = CohortEngine(ClientWork(model, training, make_compressor(8), AggregationRules()), data, LENGTH)
    steps = int(training.count_steps(sizes).sum())
    tokens = rng.integers(4, VOCABULARY, (steps, BATCH, LENGTH + 1)).astype(np.int32)
    batches = jax.device_put(Batch(jnp.asarray(tokens), jnp.ones((steps, BATCH))))

    @jax.jit
    def bare_loop(params, batches):
        def step(params, batch):
            return local_step(model, params, batch, 0.1, None)[0], None

        return jax.lax.scan(step, params, batches)[0]

    def engine_round(number: int):
        return engine.run(params, RoundPlan(number, np.arange(CLIENTS), 0, 0.1)).aggregate

    runs: dict[str, list[float]] = {"engine": [], "bare loop": []}
    first_round = timed(lambda: engine_round(0))
    timed(lambda: bare_loop(params, batches))
    for number in range(pairs):
        runs["engine"].append(steps / timed(lambda number=number: engine_round(number + 1)))
        runs["bare loop"].append(steps / timed(lambda: bare_loop(params, batches)))
    ratios = [a / b for a, b in zip(runs["engine"], runs["bare loop"], strict=True)]
    return {
        "steps": steps,
        "steps_per_second": {kind: round(statistics.median(values), 2) for kind, values in runs.items()},
        "engine_over_bare_loop": {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)},
        "seconds_to_first_round": round(first_round, 2),
    }


def timed(run) -> float:
    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def plot(measured: dict) -> Figure:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for offset, kind, colour in ((-0.2, "engine", "#0072b2"), (0.2, "bare loop", "#999999")):
        values = [result["steps_per_second"][kind] for result in measured.values()]
        bars = axes.bar(np.arange(len(measured)) + offset, values, 0.38, label=kind, color=colour)
        axes.bar_label(bars, fmt="%.0f")
    axes.set_xticks(range(len(measured)), list(measured))
    axes.set_ylabel("local SGD steps per second")
    axes.set_title("A simulated round against a bare loop of as many steps")
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    axes.legend(frameon=False, loc="upper center", ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    import os

    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    main()
