"""Sums over the units of a microbatch: of their gradients, clipped with privacy, and of what is reported of them."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.fl_core.clipping.methods import Clipping, clipped_sum, unit_sums
from fedlm.fl_core.exact_sums import empty_sum, on_grid
from fedlm.fl_core.rounds.aggregation import NORM_BINS, norm_bin
from fedlm.models.base import Batch, Model, Params
from fedlm.models.families.masked_language import MaskedBatch

CLIPPED_TO = 1 - 5 * 2.0**-12
"""Of the clip norm, gradients are clipped to. One unit more or less leaves all microbatches but two as they are: its
own, where the last unit of the batch takes its place, and that of the last. Rounding to the grid may change either's
sum by 2^-12 of the clip norm, and rounding within a microbatch of floats by as much for each of the three units that
come or go. Where a user's sequences are drawn one by one, they come or go one after another, each within its
clip norm."""
_BATCH_TYPES: dict[str, Any] = {"causal": Batch, "masked": MaskedBatch}


@dataclass(frozen=True)
class StepRules:
    """How a step is made of a batch."""

    clipping: Clipping | None  # of units' gradients; None without privacy
    noise_multiplier: float  # standard deviation of the noise on the sum, in clip norms; 0 without privacy
    batch_size: int  # what sums are divided by, whoever was drawn
    microbatch_size: int  # units that a device takes at once
    drops: bool = False  # whether chunks have keys of dropout


class BatchTotals(NamedTuple):
    """Sums over a part of a logical batch, by the device that made them: each has a first axis of partial sums."""

    gradient: Params  # of clipped gradients, as `ExactSum` in units of the clip norm; without clipping, of gradients
    unit_loss: jax.Array  # of the units' losses, in nats per token
    loss: jax.Array  # cross-entropy of all targets, in nats
    tokens: jax.Array
    units: jax.Array  # number of units that have an example
    clipped: jax.Array
    not_finite: jax.Array  # units whose gradient is not finite, and counted for nothing
    norm_counts: jax.Array  # [partial sums, NORM_BINS], histogram of the norms before clipping


def microbatch_sums(
    rules: StepRules, model: Model, params: Params, rows: dict[str, jax.Array], *, step: float
) -> BatchTotals:
    """Add up the units of a microbatch, without an axis of partial sums; with privacy on a grid of this step."""
    units = len(rows["weight"])
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in rows.items()}
    batch = _BATCH_TYPES[model.objective](**flat)
    present = jnp.any(rows["weight"] > 0, axis=1).astype(jnp.float32)
    clipping = rules.clipping
    if clipping is None:
        return _plain(model, params, batch, present)
    narrower = dataclasses.replace(clipping, clip_norm=clipping.clip_norm * CLIPPED_TO)
    found = clipped_sum(narrower, model, params, batch, units=units)
    finite = jnp.isfinite(found.norms)
    counted = present * finite
    # In units of the clip norm, learning rates need not follow it (De et al. 2022).
    gradient = jax.tree_util.tree_map(lambda leaf: leaf / clipping.clip_norm, found.gradient)
    losses = found.sums.loss / jnp.maximum(found.sums.tokens, 1.0)
    return BatchTotals(
        gradient=on_grid(gradient, jnp.float32(step), "to_nearest"),
        unit_loss=jnp.sum(jnp.where(counted > 0, losses, 0.0)),
        loss=jnp.sum(jnp.where(counted > 0, found.sums.loss, 0.0)),
        tokens=jnp.sum(jnp.where(counted > 0, found.sums.tokens, 0.0)),
        units=jnp.sum(present),
        clipped=jnp.sum(counted * jnp.any(found.factors < 1, axis=0)),
        not_finite=jnp.sum(present * ~finite),
        norm_counts=counted @ jax.nn.one_hot(norm_bin(found.norms), NORM_BINS),
    )


def _plain(model: Model, params: Params, batch: Any, present: jax.Array) -> BatchTotals:
    def loss(params: Params) -> tuple[jax.Array, Any]:
        sums = unit_sums(model.loss(params, batch), batch, len(present))
        return jnp.sum(sums.loss / jnp.maximum(sums.tokens, 1.0)), sums

    (total, sums), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    zero = jnp.zeros(())
    return BatchTotals(
        gradient=gradient,
        unit_loss=total,
        loss=jnp.sum(sums.loss),
        tokens=jnp.sum(sums.tokens),
        units=jnp.sum(present),
        clipped=zero,
        not_finite=zero,
        norm_counts=jnp.zeros(NORM_BINS),
    )


def same_for_all(gradient: Any, other: Any) -> Any:
    """Say one thing of the gradient, and another of all other totals."""
    return BatchTotals(gradient, *[other] * (len(BatchTotals._fields) - 1))


def empty_totals(shapes: Params, parts: int, exact: bool) -> BatchTotals:
    """Make totals of no unit in so many partial sums, of gradients on a grid where they are `exact`."""
    shapes = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct((parts, *leaf.shape), jnp.float32), shapes)
    gradient = empty_sum(shapes) if exact else jax.tree_util.tree_map(jnp.zeros_like, shapes)
    return same_for_all(gradient, jnp.zeros(parts))._replace(norm_counts=jnp.zeros((parts, NORM_BINS)))
