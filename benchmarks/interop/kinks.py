"""How often a gradient moves by more than rounding where parameters move by rounding alone.

The gates of scale-invariant models have a relu, whose derivative jumps where its input changes sign. Two frameworks
whose parameters differ in the last digit lie on different sides of such a place now and then, and each has then the
right gradient of its own side.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.models.base import Batch, Model, Params, batch_loss
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import OOV_ID

VOCABULARY, LENGTH, BATCH, BATCHES = 1000, 20, 10, 120


class Kinks(NamedTuple):
    """What was found.

    Attributes:
      model: its name.
      batches: that were tried.
      jumps: batches whose gradient moved by more than a thousandth of its greatest entry.
      greatest_jump: by how much an entry moved at most, in those.
      greatest_other: the same in all others.
    """

    model: str
    batches: int
    jumps: int
    greatest_jump: float
    greatest_other: float


def count_kinks(name: str) -> Kinks:
    """Differentiate random batches at a model's first parameters, and at others that differ by a ten-millionth."""
    model = create_model(name, VOCABULARY)
    params = model.init(jax.random.key(0))
    moved = [_moved(model, params, np.random.default_rng(seed)) for seed in range(BATCHES)]
    jumps = [by for by, greatest in moved if by > 1e-3 * greatest]
    others = [by for by, greatest in moved if by <= 1e-3 * greatest]
    return Kinks(name, BATCHES, len(jumps), max(jumps, default=0.0), max(others))


def _moved(model: Model, params: Params, rng: np.random.Generator) -> tuple[float, float]:
    tokens = rng.integers(OOV_ID + 1, VOCABULARY, (BATCH, LENGTH + 1)).astype(np.int32)
    batch = Batch(jnp.asarray(tokens), jnp.ones(BATCH))
    beside = jax.tree_util.tree_map(
        lambda leaf: leaf * (1 + np.float32(1e-7) * rng.standard_normal(leaf.shape).astype(np.float32)), params
    )
    here, there = _gradient(model, params, batch), _gradient(model, beside, batch)
    return _greatest(jax.tree_util.tree_map(jnp.subtract, here, there)), _greatest(here)


@partial(jax.jit, static_argnums=0)
def _gradient(model: Model, params: Params, batch: Batch) -> Params:
    return jax.grad(lambda params: batch_loss(model, params, batch)[0])(params)


def _greatest(tree: Any) -> float:
    return max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree_util.tree_leaves(tree))
