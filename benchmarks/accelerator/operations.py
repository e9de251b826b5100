"""How many operations a private step needs, and how many its program does: counted from shapes, on any machine.

A private step needs the products of a plain one, and those of the norms, each in the cheaper form. What its program
does beside that is the second product of each weighted sum in bfloat16: a weighted factor is two numbers of that type.

    python -m benchmarks.accelerator.operations

Prints a table in Markdown. Nothing is computed.
"""

import argparse
from unittest.mock import patch

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks.accelerator.kernels import PARTS
from benchmarks.accelerator.matrix_products import products_in, total_flops
from benchmarks.accelerator.private_steps import build
from benchmarks.clipping.steps import LANES, Setting, draw_batch, step_over
from fedlm.models.precision import Precision, precision_scope, with_precision

STEPS = (("transformer_21m", 256, 128), ("cifg_19m", 1024, 20), ("vaultgemma_100m", 128, 1024))
GRADIENT = "gradient"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| step | plain | needed | its gradient | its norms | its weighted sums | all | over plain |")
    print("| --- " * 8 + "|")
    for model, examples, length in STEPS:
        print(row(model, examples, length))


def row(model: str, examples: int, length: int) -> str:
    """Write a step's row of the table, in 10^12 operations."""
    plain, private = (
        operations(model, kind, examples, length, vocabulary=None, precision="bfloat16")
        for kind in ("plain", "bookkeeping")
    )
    total, least = sum(private.values()), sum(plain.values()) + private[PARTS[0]]
    numbers = [sum(plain.values()), least, private[GRADIENT], *(private[part] for part in PARTS), total]
    cells = [f"`{model}`, {examples} x {length}", *(f"{number / 1e12:.2f}" for number in numbers)]
    return f"| {' | '.join(cells)} | {total / sum(plain.values()):.2f} |"


def operations(
    model: str, kind: str, examples: int, length: int, *, vocabulary: int | None, precision: Precision
) -> dict[str, float]:
    """Count the operations of a step's matrix products on a GPU, by part of the step."""
    built = with_precision(build(model, vocabulary), precision)
    params = jax.eval_shape(built.init, jax.random.key(0))
    batch = jax.eval_shape(lambda: draw_batch(built, examples, length))
    mesh = Mesh(np.array(jax.local_devices()[:1]), LANES)
    # Which form of a norm is cheaper is asked of the platform.
    with patch.object(jax, "default_backend", lambda: "gpu"), precision_scope(precision):
        traced = jax.make_jaxpr(step_over(mesh, built, Setting(kind, examples, 1)))(params, batch).jaxpr
    found = {part: total_flops(products_in(traced, part)) for part in PARTS}
    return found | {GRADIENT: total_flops(products_in(traced)) - sum(found.values())}


if __name__ == "__main__":
    main()
