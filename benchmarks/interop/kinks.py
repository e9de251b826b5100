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

from benchmarks.interop.our_rounds import make_task, run_ours
from benchmarks.interop.task import Setting, greatest_difference
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


class OwnRounds(NamedTuple):
    """How far our own rounds part, from first parameters that differ by rounding.

    Attributes:
      model: its name.
      size: by how much the first parameters differed, over their own size: the deviation.
      draws: first parameters that were tried.
      after_one: the greatest difference of a parameter after one round: the median of the draws, and the greatest.
      after_all: the same after all rounds.
      rounds: how many.
    """

    model: str
    size: float
    draws: int
    after_one: tuple[float, float]
    after_all: tuple[float, float]
    rounds: int


def part_by_rounding(setting: Setting, size: float, draws: int) -> OwnRounds:
    """Run our rounds again from parameters that are moved by this much of themselves, once a draw."""
    task = make_task(setting)
    ours = list(run_ours(task))
    apart = []
    for seed in range(draws):
        moved = run_ours(task._replace(params=_beside(task.params, size, np.random.default_rng(seed))))
        apart.append([greatest_difference(one, other) for one, other in zip(ours, moved, strict=True)])
    first, *_, last = np.array(apart).T
    middle_and_most = [(float(np.median(some)), float(np.max(some))) for some in (first, last)]
    return OwnRounds(setting.model, size, draws, *middle_and_most, setting.rounds)


def _beside(params: Any, size: float, rng: np.random.Generator) -> Any:
    """Multiply each parameter by a number near one, normally distributed with this deviation, in float32."""

    def move(leaf: Any) -> Any:
        return leaf * (1 + np.float32(size) * rng.standard_normal(leaf.shape).astype(np.float32))

    return jax.tree_util.tree_map(move, params)


def _moved(model: Model, params: Params, rng: np.random.Generator) -> tuple[float, float]:
    tokens = rng.integers(OOV_ID + 1, VOCABULARY, (BATCH, LENGTH + 1)).astype(np.int32)
    batch = Batch(jnp.asarray(tokens), jnp.ones(BATCH))
    beside = _beside(params, 1e-7, rng)
    here, there = _gradient(model, params, batch), _gradient(model, beside, batch)
    return _greatest(jax.tree_util.tree_map(jnp.subtract, here, there)), _greatest(here)


@partial(jax.jit, static_argnums=0)
def _gradient(model: Model, params: Params, batch: Batch) -> Params:
    return jax.grad(lambda params: batch_loss(model, params, batch)[0])(params)


def _greatest(tree: Any) -> float:
    return max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree_util.tree_leaves(tree))
