"""What the server makes of updates: it screens, clips and weighs each one, and keeps only sums.

A client's contribution and a cohort's aggregate are the same type, so aggregating is adding. The simulation's
engine and the server of a deployment both call `contribution`.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fl_core.errors import ConfigurationError
from fl_core.local_sgd import TrainingSums, global_norm
from models.base import Params

Weighting = Literal["examples", "uniform"]


@dataclass(frozen=True)
class AggregationRules:
    """How the server treats each update.

    Attributes:
      weighting: a client counts by its `examples`, or all count the same (`uniform`).
      clip_norm: scale an update down to this L2 norm; None leaves norms alone.
    """

    weighting: Weighting = "examples"
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.weighting not in ("examples", "uniform"):
            raise ConfigurationError(f"weighting is {self.weighting!r}, but must be 'examples' or 'uniform'")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigurationError(f"clip_norm is {self.clip_norm}, but must be positive (or left out)")


class CohortAggregate(NamedTuple):
    """Sums over clients; every field but `delta` is a float32 scalar.

    Attributes:
      delta: weighted sum of the decompressed, clipped deltas `server_params - local_params`.
      weight: sum of the weights in `delta`.
      clients: how many updates arrived.
      dropped: how many of them were not finite and so count for nothing else.
      clipped: how many were longer than the clip norm.
      update_norm: sum of the updates' norms before clipping.
      training: sums over the clients' local steps.
      examples: how many examples the clients have.
    """

    delta: Params
    weight: jax.Array
    clients: jax.Array
    dropped: jax.Array
    clipped: jax.Array
    update_norm: jax.Array
    training: TrainingSums
    examples: jax.Array


def empty_aggregate(params: Params) -> CohortAggregate:
    """Make the aggregate of no client.

    Args:
      params: arrays of the model's structure.

    Returns:
      Zeros.
    """
    zero = jnp.zeros(())
    delta = jax.tree_util.tree_map(jnp.zeros_like, params)
    return CohortAggregate(delta, zero, zero, zero, zero, zero, TrainingSums.zero(), zero)


def contribution(
    delta: Params,
    num_examples: jax.Array,
    training: TrainingSums,
    rules: AggregationRules,
    clip_norm: jax.typing.ArrayLike | None = None,
) -> CohortAggregate:
    """Turn one client's update, as the server decompressed it, into what it adds to the aggregate.

    Args:
      delta: float32 arrays.
      num_examples: scalar, what the client says it has.
      training: what the client says of its training.
      rules: weighting and clipping.
      clip_norm: scalar, in place of the rules' where it is given.

    Returns:
      The aggregate of this client alone. An update with any value that is not finite is counted as dropped
      and adds nothing.
    """
    norm = global_norm(delta)
    # A sum of squares may overflow where every value is finite; such an update is as useless.
    accepted = jnp.isfinite(norm) & jnp.isfinite(training.loss)
    weight = jnp.where(accepted, num_examples if rules.weighting == "examples" else 1.0, 0.0)
    clipped = jnp.zeros((), bool)
    scale = weight
    clip_norm = rules.clip_norm if clip_norm is None else clip_norm
    if clip_norm is not None:
        clipped = accepted & (norm > clip_norm)
        scale = weight * jnp.where(clipped, clip_norm / norm, 1.0)

    def keep(value: jax.Array) -> jax.Array:
        return jnp.where(accepted, value, 0.0).astype(jnp.float32)

    return CohortAggregate(
        delta=jax.tree_util.tree_map(lambda leaf: jnp.where(accepted, leaf * scale, 0.0), delta),
        weight=keep(weight),
        clients=jnp.ones(()),
        dropped=1.0 - accepted,
        clipped=clipped.astype(jnp.float32),
        update_norm=keep(norm),
        training=TrainingSums(*map(keep, training)),
        examples=keep(num_examples),
    )


def add_aggregates(first: CohortAggregate, second: CohortAggregate) -> CohortAggregate:
    """Add two aggregates of disjoint sets of clients.

    Args:
      first: one aggregate.
      second: another.

    Returns:
      The aggregate of all their clients.
    """
    return jax.tree_util.tree_map(jnp.add, first, second)


def mean_delta(aggregate: CohortAggregate) -> Params:
    """Compute the weighted mean update: the pseudo-gradient of the round.

    Args:
      aggregate: of a cohort.

    Returns:
      `delta / weight`, or zeros where no update counted.
    """
    weight = jnp.where(aggregate.weight > 0, aggregate.weight, 1.0)
    return jax.tree_util.tree_map(lambda leaf: leaf / weight, aggregate.delta)
