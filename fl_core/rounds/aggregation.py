"""What the server makes of updates: it screens, clips and weighs each one, and keeps only sums.

A client's contribution and a cohort's aggregate are the same type, so aggregating is adding. The simulation's
engine and the server of a deployment both call `contribution`.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.exact_sums import SAFETY, empty_sum, grid_step, normalized, number_of_coordinates, on_grid
from fedlm.fl_core.rounds.local_sgd import TrainingSums, global_norm
from fedlm.models.base import Params

Weighting = Literal["examples", "uniform"]
NORM_BINS = 112
_SMALLEST_NORM, _BINS_PER_OCTAVE = -16, 4


@dataclass(frozen=True)
class AggregationRules:
    """How the server treats each update.

    Attributes:
      weighting: a client counts by its `examples`, or all count the same (`uniform`).
      most_examples: no client counts for more examples than these, whatever it says that it has.
      exact: clipped updates are rounded toward zero to the grid of `exact_sums`, and integers are added, as privacy
        needs it.
    """

    weighting: Weighting = "examples"
    most_examples: float = math.inf
    exact: bool = False

    def __post_init__(self) -> None:
        if self.weighting not in ("examples", "uniform"):
            raise ConfigurationError(
                f"{setting('weighting')} is {self.weighting!r}, but must be 'examples' or 'uniform'"
            )
        if self.exact and self.weighting != "uniform":
            raise ConfigurationError("exact sums are of updates that all weigh the same")


class CohortAggregate(NamedTuple):
    """Sums over clients; aggregators send every field to their coordinator as it is.

    But for `delta` and `norm_counts` all numbers are float32 scalars.

    Attributes:
      delta: weighted sum of the decompressed, clipped updates: of deltas `server_params - local_params`, or of what
        else the client algorithm sends, as a whole; an `ExactSum` in place of each array where the rules are `exact`.
      weight: sum of the weights in `delta`.
      clients: how many updates arrived.
      dropped: how many of them were not finite and so count for nothing else.
      clipped: how many were longer than the clip norm.
      update_norm: sum of the updates' norms before clipping.
      norm_counts: float32 [NORM_BINS], how many updates had a norm in each of the bins of `norm_quantiles`.
      training: sums over the clients' local steps.
      examples: how many examples the clients have.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedlm.fl_core.rounds.aggregation import add_aggregates, empty_aggregate
      >>> nobody = empty_aggregate({"w": jnp.zeros(2)})
      >>> float(add_aggregates(nobody, nobody).clients)
      0.0
    """

    delta: Params
    weight: jax.Array
    clients: jax.Array
    dropped: jax.Array
    clipped: jax.Array
    update_norm: jax.Array
    norm_counts: jax.Array
    training: TrainingSums
    examples: jax.Array


def empty_aggregate(like: Params, exact: bool = False) -> CohortAggregate:
    """Make the aggregate of no client: zeros, with `delta` of the structure of an update's arrays or shapes."""
    zero = jnp.zeros(())
    delta = empty_sum(like) if exact else jax.tree_util.tree_map(jnp.zeros_like, like)
    return CohortAggregate(
        delta=delta,
        weight=zero,
        clients=zero,
        dropped=zero,
        clipped=zero,
        update_norm=zero,
        norm_counts=jnp.zeros(NORM_BINS),
        training=TrainingSums.zero(),
        examples=zero,
    )


def contribution(
    delta: Params,
    num_examples: jax.Array,
    training: TrainingSums,
    rules: AggregationRules,
    *,
    clip_norm: jax.typing.ArrayLike | None = None,
    norm: jax.Array | None = None,
    coordinates: int | None = None,
) -> CohortAggregate:
    """Turn one client's update, as the server decompressed it, into what it adds to the aggregate.

    An update with any value that is not finite is counted as dropped and adds nothing.

    Args:
      delta: float32 arrays.
      num_examples: scalar, what the client says it has.
      training: what the client says of its training.
      rules: weighting and rounding.
      clip_norm: scalar, an update is scaled down to this L2 norm; None leaves norms alone, which exact sums do not.
      norm: the L2 norm of the update, where it is known already.
      coordinates: of the update, where `delta` is a part of it.
    """
    norm = global_norm(delta) if norm is None else norm
    # A sum of squares may overflow where every value is finite; such an update is as useless.
    accepted = jnp.isfinite(norm) & jnp.isfinite(training.loss)
    counted = jnp.minimum(num_examples, rules.most_examples) if rules.weighting == "examples" else 1.0
    weight = jnp.where(accepted, counted, 0.0)
    clipped = jnp.zeros((), bool)
    scale = weight
    assert clip_norm is not None or not rules.exact
    if clip_norm is not None:
        bound = clip_norm * SAFETY if rules.exact else clip_norm
        clipped = accepted & (norm > bound)
        scale = weight * jnp.where(clipped, bound / norm, 1.0)

    def keep(value: jax.Array) -> jax.Array:
        return jnp.where(accepted, value, 0.0).astype(jnp.float32)

    added = jax.tree_util.tree_map(lambda leaf: jnp.where(accepted, leaf * scale, 0.0), delta)
    if rules.exact:
        coordinates = number_of_coordinates(delta) if coordinates is None else coordinates
        step = grid_step(jnp.asarray(clip_norm, jnp.float32), coordinates)
        added = on_grid(added, step, "toward_zero")
    return CohortAggregate(
        delta=added,
        weight=keep(weight),
        clients=jnp.ones(()),
        dropped=1.0 - accepted,
        clipped=clipped.astype(jnp.float32),
        update_norm=keep(norm),
        norm_counts=jnp.where(accepted, jax.nn.one_hot(norm_bin(norm), NORM_BINS), 0.0),
        training=TrainingSums(*map(keep, training)),
        examples=keep(num_examples),
    )


def norm_bin(norm: jax.Array) -> jax.Array:
    """Say in which of the `NORM_BINS` bins of a histogram norms lie: float32 [...] to int32 [...]."""
    place = (jnp.log2(jnp.maximum(norm, 1e-30)) - _SMALLEST_NORM) * _BINS_PER_OCTAVE
    return jnp.clip(jnp.floor(jnp.nan_to_num(place)), 0, NORM_BINS - 1).astype(jnp.int32)


def norm_quantiles(counts: npt.ArrayLike, quantiles: Sequence[float]) -> list[float | None]:
    """Estimate quantiles of the updates' norms before clipping.

    Args:
      counts: float [NORM_BINS] of a `CohortAggregate`; bins are quarters of an octave.
      quantiles: each between 0 and 1.

    Returns:
      The (geometric) middle of the bin in which each quantile lies, 9 % off at most; None where no update counted.
    """
    upto = np.cumsum(np.asarray(counts, np.float64))
    if not upto[-1]:
        return [None] * len(quantiles)
    places = [int(np.searchsorted(upto, quantile * upto[-1])) for quantile in quantiles]
    return [2.0 ** (_SMALLEST_NORM + (min(place, NORM_BINS - 1) + 0.5) / _BINS_PER_OCTAVE) for place in places]


def add_aggregates(first: CohortAggregate, second: CohortAggregate) -> CohortAggregate:
    """Add two aggregates of disjoint sets of clients."""
    total = jax.tree_util.tree_map(jnp.add, first, second)
    return total._replace(delta=normalized(total.delta))


class MeanUpdate(NamedTuple):
    """What becomes of a cohort's sum: the mean update that the server steps with, and what is known of it.

    Attributes:
      delta: the mean, which the server's step uses up; None where no update counted, and there is no step.
      state: of what makes the means, after the round.
      metrics: JSON-able numbers by name, for the round's row.
      restart: whether the server optimizer forgets its state after the step.
      divisor: what the sum was divided by.
      noise: standard deviation of the noise of each number of the mean; infinite where it is not independent of that of
        other rounds.
    """

    delta: Params | None
    state: Any = None
    metrics: dict[str, Any] = {}  # noqa: RUF012
    restart: bool = False
    divisor: float = 1.0
    noise: float = 0.0


def mean_delta(aggregate: CohortAggregate) -> Params:
    """Compute the pseudo-gradient of a round: the weighted mean of its updates, or zeros where none counted."""
    weight = jnp.where(aggregate.weight > 0, aggregate.weight, 1.0)
    return jax.tree_util.tree_map(lambda leaf: leaf / weight, aggregate.delta)


@dataclass(frozen=True)
class WeightedMean:
    """The mean by the clients' weights, without privacy, of updates that are clipped to a norm that stays, or not at
    all; see `fedlm.fl_core.rounds.round_loop.PlainAveraging`."""

    norm: float | None = None

    def __post_init__(self) -> None:
        if self.norm is not None and not self.norm > 0:
            raise ConfigurationError(f"the clip norm is {self.norm}, but must be positive (or left out)")

    def init(self) -> None:
        return None

    def after(self, rows: list[dict[str, Any]]) -> None:
        return None

    def clip_norm(self, state: None) -> float | None:
        return self.norm

    def next(self, state: None, aggregate: CohortAggregate, round_number: int) -> MeanUpdate:
        if not aggregate.weight > 0:
            return MeanUpdate(None)
        delta = _mean_in_place(aggregate.delta, aggregate._replace(delta={}))
        return MeanUpdate(delta, divisor=float(aggregate.weight))


# Sums are as large as models: their memory is used again for the mean.
@functools.partial(jax.jit, donate_argnums=0)
def _mean_in_place(delta: Params, aggregate: CohortAggregate) -> Params:
    return mean_delta(aggregate._replace(delta=delta))
