"""Clipped gradient steps of SASRec at the shapes of DPFormer (arXiv 2305.17633, figure 3): time, and greatest batch.

Its authors clip a table that embeds items and scores them too ("phantom clipping") on MovieLens, 3.4 thousand items and
200 a user, and on Amazon Games, 23.7 thousand and 50, at width 64. Times are taken as `against_peers` takes them, with
PyTorch and Opacus. The greatest batch of a kind of step is the largest that the compiler plans 16 GiB for, arguments,
outputs and temporaries, where all examples are differentiated at once; nothing of that size is computed.

    python -m benchmarks.clipping.recommenders

`make bench-peers` makes the environment of PyTorch and Opacus; without it they are left out. Run it when nothing else
runs.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.clipping.against_peers import CORES, RESULTS, TABLE_WIDTH, measure_case
from benchmarks.clipping.report import LABELS, plot, table
from benchmarks.clipping.steps import KINDS, Setting, compiled_memory
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import SPECIAL_TOKENS

MEMORY = 16 * 2**30
SMALLEST, LARGEST = 64, 2**17
NEAR = 1.05
"""How far from the greatest batch the one that is named may be."""


class Shape(NamedTuple):
    """A data set of the paper: its name, a model, items, and items that a model reads of a user."""

    data: str
    model: str
    items: int
    length: int

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.items + len(SPECIAL_TOKENS)


SHAPES = (Shape("MovieLens-1M", "sasrec+max_length=200", 3416, 200), Shape("Amazon Games", "sasrec", 23_715, 50))


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    jax.config.update("jax_num_cpu_devices", CORES)
    console = Console(width=TABLE_WIDTH)
    arguments.results.mkdir(parents=True, exist_ok=True)
    setting = "full rows of items with Zipf's frequencies, clip norm 1, float32, no dropout; Opacus has untied items"
    path = arguments.results / "recommenders.json"
    before = json.loads(path.read_text(encoding="utf-8"))["shapes"] if path.exists() else {}
    results: dict[str, Any] = {"setting": setting, "memory_bytes": MEMORY, "shapes": before}
    for shape in [one for one in SHAPES if one.data in arguments.shapes]:
        greatest = {}
        for kind in arguments.kinds:
            greatest[kind] = greatest_batch(shape, kind)
            console.log(f"{shape.data}: {kind}: {greatest[kind]} examples in 16 GiB")
        arguments.vocabulary = shape.vocabulary
        timed = measure_case(shape.model, arguments.examples, shape.length, arguments, console.log)
        found = {"machine": describe_machine(), "items": shape.items, "greatest_batch": greatest, "steps": timed}
        results["shapes"][shape.data] = found
        console.print(table(timed))
        write_atomically(path, json.dumps(results, indent=2) + "\n")
    console.print(batches_table(results["shapes"]))
    draw(results["shapes"]).savefig(arguments.results / "recommenders.png", dpi=120)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = [shape.data for shape in SHAPES]
    parser.add_argument("--shapes", nargs="+", choices=data, default=data, help="others keep what was found before")
    parser.add_argument("--examples", type=int, default=256, help="the logical batch whose step is timed")
    parser.add_argument("--microbatches", nargs="+", type=int, default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what is measured of JAX")
    parser.add_argument("--passes", type=int, default=5, help="how often each of the fastest settings is timed")
    parser.add_argument("--without-peers", action="store_true", help="leave PyTorch and Opacus out")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that an answer of a peer may take")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    return parser.parse_args(words)


def greatest_batch(shape: Shape, kind: str, memory: int = MEMORY) -> int:
    """Find the largest batch whose step is compiled for so many bytes: multiples of 64, within 5 %; 0 where none is."""

    def fits(examples: int) -> bool:
        model = create_model(shape.model, shape.vocabulary)
        return compiled_memory(model, examples, shape.length, Setting(kind, examples, 1)) <= memory

    below, above = 0, SMALLEST
    while above <= LARGEST and fits(above):
        below, above = above, 2 * above
    while above <= LARGEST and below and above > NEAR * below + SMALLEST:
        middle = (below + above) // (2 * SMALLEST) * SMALLEST
        below, above = (middle, above) if fits(middle) else (below, middle)
    return below


def batches_table(shapes: dict[str, Any]) -> Table:
    """Lay the greatest batches out for the terminal."""
    result = Table(title="Greatest batch in 16 GiB")
    result.add_column("step", no_wrap=True)
    for data in shapes:
        result.add_column(data, justify="right")
    greatest = [found["greatest_batch"] for found in shapes.values()]
    for kind in dict.fromkeys(kind for found in greatest for kind in found):
        result.add_row(LABELS[kind], *(f"{found[kind]:,}" if kind in found else "" for found in greatest))
    return result


def draw(shapes: dict[str, Any]) -> Figure:
    """Draw the times of each shape's steps."""
    figure = plot([found["steps"] for found in shapes.values()])
    for axes, (data, found) in zip(figure.axes, shapes.items(), strict=True):
        axes.set_title(f"{data}: {found['steps']['examples']} x {found['steps']['length']}", fontsize=9)
    return figure


if __name__ == "__main__":
    main()
