"""Where a simulated round's time goes: operations of the compiled program by kind and by how often they run.

One device on all its cores runs a round under JAX's profiler. Operations are told apart by what they do (matrix
products, copies, the rest) and by whether they run at every time step of a sequence, at every local step, or once a
client (start, quantization, aggregation). `compiler's own count` of floating point operations, against the rate of a
large matrix product on the same device, says how near the round is to what the machine can do.

    python -m benchmarks.simulation.profile_round
"""

import argparse
import collections
import gzip
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.simulation.against_peers import COHORTS, RESULTS, make_task
from benchmarks.simulation.peers.jax_models import create
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import LocalTraining, local_step
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.registry import COMPRESSION_OF_BITS, make_compressor
from fedlm.models.base import Batch
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine

NOT_OPERATIONS = ("Thunk", "while", "cond", "Pjit", "Pjrt", "Slinky", "Common", "$", "ParseArguments", "call", "body")
PRODUCTS, COPIES = ("ynn", "dot"), ("copy", "transpose")
SIZE = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=COHORTS, default=[name for name in COHORTS if name != "cifg_9m"])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--upload-bits", type=int, default=8)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 1)
    peak = matrix_product_rate()
    record = {
        "machine": describe_machine(),
        "matrix_product_gflops": round(peak / 1e9, 1),
        "models": {name: profile(name, arguments, peak) for name in arguments.models},
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "profile_round.json", json.dumps(record, indent=2) + "\n")
    for name, measured in record["models"].items():
        Console().print(table(name, measured))


def matrix_product_rate(dtype: Any = jnp.float32, size: int = SIZE) -> float:
    """Floating point operations a second of a large product."""
    one = jnp.ones((size, size), dtype)
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(one))
    best = float("inf")
    for _ in range(40):
        started = time.perf_counter()
        jax.block_until_ready(product(one))
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def profile(name: str, arguments: argparse.Namespace, peak: float) -> dict[str, Any]:
    task = make_task(name, arguments.clients)
    model, training = create(name, task.settings.vocabulary_size), LocalTraining(batch_size=task.settings.batch_size)
    params = jax.tree_util.tree_map(jnp.asarray, task.params)
    work = ClientWork(model, training, make_compressor(COMPRESSION_OF_BITS[arguments.upload_bits]), AggregationRules())
    engine = CohortEngine(work, InMemoryData(task.clients), task.evaluation.shape[1] - 1)

    def run(number: int) -> float:
        plan = RoundPlan(number, np.arange(len(task.clients)), 0, task.settings.learning_rate)
        started = time.perf_counter()
        jax.block_until_ready(engine.run(params, plan).aggregate)
        return time.perf_counter() - started

    run(0)
    seconds = min(run(number) for number in range(1, 4))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run(4)
        (trace,) = Path(folder).rglob("*.trace.json.gz")
        with gzip.open(trace, "rt") as file:
            events = json.load(file)["traceEvents"]
    batch = Batch(jnp.asarray(task.evaluation[: task.settings.batch_size]), jnp.ones(task.settings.batch_size))
    step = jax.jit(lambda p: local_step(model, p, batch, learning_rate=0.1, gradient_clip=None)[0])
    operations = float(step.lower(params).compile().cost_analysis()["flops"])
    return {
        "clients": len(task.clients),
        "steps": task.steps,
        "milliseconds_a_step": round(1e3 * seconds / task.steps, 3),
        "megaflops_a_step": round(operations / 1e6, 1),
        "part_of_matrix_product_rate": round(operations * task.steps / seconds / peak, 3),
        "milliseconds_by_kind": by_kind(events, task.steps),
    }


def by_kind(events: list[dict], steps: int) -> dict[str, float]:
    """Sum up a trace's operations, in milliseconds a local step, the longest first."""
    spent: dict[str, float] = collections.Counter()
    calls: dict[str, int] = collections.Counter()
    for event in events:
        if event.get("ph") == "X" and "dur" in event and not event["name"].startswith(NOT_OPERATIONS):
            spent[event["name"]] += event["dur"] / 1e3 / steps
            calls[event["name"]] += 1
    kinds: dict[str, float] = collections.Counter()
    for name, milliseconds in spent.items():
        kinds[f"{kind_of(name)}, {frequency_of(calls[name] / steps)}"] += milliseconds
    return {kind: round(value, 3) for kind, value in sorted(kinds.items(), key=lambda item: -item[1])}


def kind_of(name: str) -> str:
    if name.startswith(PRODUCTS):
        return "matrix products"
    return "copies" if any(word in name for word in COPIES) else "elementwise and other"


def frequency_of(calls_a_step: float) -> str:
    if calls_a_step < 0.8:
        return "once a client"
    return "every local step" if calls_a_step < 4 else "every time step or layer"


def table(name: str, measured: dict[str, Any]) -> Table:
    part = measured["part_of_matrix_product_rate"]
    result = Table(
        title=f"{name}: {measured['milliseconds_a_step']} ms a step, {part:.0%} of the matrix product's rate"
    )
    result.add_column("operations", no_wrap=True)
    result.add_column("ms a step", justify="right")
    result.add_column("part", justify="right")
    total = sum(measured["milliseconds_by_kind"].values())
    for kind, value in measured["milliseconds_by_kind"].items():
        result.add_row(kind, f"{value:.2f}", f"{value / total:.1%}")
    return result


if __name__ == "__main__":
    main()
