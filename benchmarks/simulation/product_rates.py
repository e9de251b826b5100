"""How fast each matrix product of a local step is on one core, in JAX and in PyTorch, beside a large product.

Both sides compute the same shapes, in turn, each in a process that is bound to one core, has one thread and keeps the
memory that it frees, as fedlm's commands do.

    python -m benchmarks.simulation.product_rates

`make bench-peers` makes PyTorch's environment. Run it when nothing else runs.
"""

import argparse
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters.partial_eval import dce_jaxpr
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.accelerator.matrix_products import Product, Products, products_in
from benchmarks.machine import describe_machine
from benchmarks.simulation.against_peers import BATCH, LENGTH, LOGS, OURS, PEERS, RESULTS, ROOT, VOCABULARY
from benchmarks.simulation.comparing import spread
from benchmarks.simulation.contestants import Contestant
from benchmarks.simulation.peers.jax_models import create
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.process_memory import keep_freed_memory
from fedlm.fl_core.rounds.local_sgd import local_step
from fedlm.models.base import Batch

MODELS = ["cifg_tiny", "transformer_tiny", "cifg_1m", "transformer_1m", "cifg_9m", "transformer_11m"]
LARGE = Product(2.0 * 2048**3, 0.0, (2048, 2048), (2048, 2048), "ab,bc->ac")
SIDES = {"jax": (OURS, "#0072b2"), "torch": (PEERS, "#e69f00")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--passes", type=int, default=5, help="how often each product is timed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    machine = describe_machine()
    products = {name: products_of_step(name) for name in arguments.models}
    seconds = time_products({LARGE, *(one for of in products.values() for one in of)}, arguments.passes)
    record = {
        "machine": machine,
        "large_gflops": {side: round(LARGE.flops / times / 1e9, 1) for side, times in seconds[LARGE].items()},
        "models": {name: rates(of, seconds) for name, of in products.items()},
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "product_rates.json", json.dumps(record, indent=2) + "\n")
    plot(record).savefig(arguments.results / "product_rates.png", dpi=120)
    for name, of in record["models"].items():
        Console().print(table(name, of))


def products_of_step(name: str) -> Products:
    """Count the matrix products of a local step of SGD, without those whose results it does not need."""
    model = create(name, VOCABULARY)
    batch = Batch(jnp.zeros((BATCH, LENGTH + 1), jnp.int32), jnp.ones(BATCH))
    params = jax.eval_shape(model.init, jax.random.key(0))
    step = jax.make_jaxpr(lambda p: local_step(model, p, batch, learning_rate=0.1, gradient_clip=None)[0])(params)
    needed, _ = dce_jaxpr(step.jaxpr, [True] * len(step.jaxpr.outvars))
    return products_in(needed)


def time_products(products: set[Product], passes: int) -> dict[Product, dict[str, float]]:
    """Give the median seconds of each product on each side."""
    times: dict[Product, dict[str, list[float]]] = {one: {side: [] for side in SIDES} for one in products}
    # The sides inherit both.
    keep_freed_memory()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    LOGS.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        sides = {}
        for side, (python, _) in SIDES.items():
            command = [str(python), "-m", f"benchmarks.simulation.peers.{side}_products"]
            variables = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
            sides[side] = Contestant(command, LOGS / f"{side}_products.log", 300, variables)
            stack.enter_context(contextlib.closing(sides[side]))
        for _ in range(passes):
            for one in sorted(products):
                variant = json.dumps([one.formula, one.left, one.right])
                for side, contestant in sides.items():
                    times[one][side].append(contestant.run_round(variant)["seconds"])
    return {one: {side: spread(of).median for side, of in by_side.items()} for one, by_side in times.items()}


def rates(products: Products, seconds: dict[Product, dict[str, float]]) -> dict[str, Any]:
    """Give the rate of each product, the costliest first, and of all of them together."""
    large = {side: LARGE.flops / times for side, times in seconds[LARGE].items()}
    rows = [
        {
            "formula": one.formula,
            "left": one.left,
            "right": one.right,
            "times_a_step": count,
            "milliseconds": {side: round(1e3 * count * seconds[one][side], 4) for side in SIDES},
            "part_of_large": {side: round(one.flops / seconds[one][side] / large[side], 3) for side in SIDES},
        }
        for one, count in products.items()
    ]
    flops = sum(one.flops * count for one, count in products.items())
    total = {side: sum(seconds[one][side] * count for one, count in products.items()) for side in SIDES}
    return {
        "products": sorted(rows, key=lambda row: -row["milliseconds"]["jax"]),
        "milliseconds": {side: round(1e3 * total[side], 2) for side in SIDES},
        "part_of_large": {side: round(flops / total[side] / large[side], 3) for side in SIDES},
    }


def label(row: dict[str, Any]) -> str:
    shapes = " by ".join("x".join(map(str, row[factor])) for factor in ("left", "right"))
    return shapes if row["times_a_step"] == 1 else f"{shapes}, {row['times_a_step']} times"


def table(name: str, measured: dict[str, Any]) -> Table:
    result = Table(title=f"{name}: {measured['milliseconds']['jax']} ms of products a step, on one core")
    for title in ("product", "ms in JAX", "ms in PyTorch", "part of a large one in JAX", "in PyTorch"):
        result.add_column(title, justify="left" if title == "product" else "right")
    for row in [*measured["products"], measured]:
        name = f"{row['formula']}: {label(row)}" if "formula" in row else "all"
        cells = [f"{row['milliseconds'][side]:.2f}" for side in SIDES]
        result.add_row(name, *cells, *(f"{row['part_of_large'][side]:.0%}" for side in SIDES))
    return result


def plot(record: dict[str, Any]) -> Figure:
    """Draw the costliest products of each model, as parts of a large product's rate."""
    models = record["models"]
    figure = Figure(figsize=(13, 2.3 * len(models)), layout="constrained")
    for axes, (name, of) in zip(figure.subplots(len(models), squeeze=False)[:, 0], models.items(), strict=True):
        rows = of["products"][:6][::-1]
        for place, (side, (_, colour)) in enumerate(SIDES.items()):
            heights = [index + 0.2 - 0.4 * place for index in range(len(rows))]
            title = {"jax": "JAX", "torch": "PyTorch"}[side]
            axes.barh(heights, [row["part_of_large"][side] for row in rows], 0.38, color=colour, label=title)
        axes.set(yticks=range(len(rows)), yticklabels=[label(row) for row in rows], title=name, xlim=(0, 1.1))
        axes.axvline(1, color="0.6", linewidth=1)
    axes.set_xlabel("part of the library's own rate for a product of 2048 x 2048")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right")
    return figure


if __name__ == "__main__":
    main()
