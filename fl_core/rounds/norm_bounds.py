"""A bound of the norms of updates that follows what is usual among them, for runs without privacy.

Clipping to a quantile of the cohort's own norms is that of Andrew et al. 2021, "Differentially private learning with
adaptive clipping", without the noise. The median here is taken of cohorts, and then over rounds, so that it stays
among the norms of honest clients as long as these are the larger half of most cohorts.
"""

import functools
import statistics
from collections.abc import Iterable
from typing import Any

import jax

from fedlm.fl_core.rounds.aggregation import CohortAggregate, MeanUpdate, WeightedMean, norm_quantiles
from fedlm.models.base import Params

MEDIANS_IN_BOUND = 4.0
"""The bound in median norms: most honest updates are shorter."""
_ROUNDS_REMEMBERED = 8
_MEDIAN = "update_norm_p50"
_SHORTEST = 2.0**-16

RecentMedians = tuple[float, ...]
"""The median norms of the latest cohorts of which any update counted, the latest last."""


def recent_medians(rows: Iterable[dict[str, Any]]) -> RecentMedians:
    """Find in a run's metrics rows what a `BoundedMean` remembers after them."""
    found = (row.get(_MEDIAN) for row in rows)
    return tuple(median for median in found if median is not None)[-_ROUNDS_REMEMBERED:]


class BoundedMean:
    """The weighted mean of updates of which none is longer than `MEDIANS_IN_BOUND` of the latest cohorts' medians; see
    `fedlm.fl_core.rounds.round_loop.PlainAveraging`.

    Before there is a cohort to go by, all updates are cut to one length, shorter than any, and their mean is made as
    much longer as this cohort's median is: each counts by its direction.
    """

    def init(self) -> RecentMedians:
        return ()

    def after(self, rows: list[dict[str, Any]]) -> RecentMedians:
        return recent_medians(rows)

    def clip_norm(self, state: RecentMedians) -> float:
        # Of two in the middle the lower, so that one cohort of liars in two moves nothing.
        return MEDIANS_IN_BOUND * statistics.median_low(state) if state else _SHORTEST

    def next(self, state: RecentMedians, aggregate: CohortAggregate, round_number: int) -> MeanUpdate:
        bound, median = self.clip_norm(state), norm_quantiles(aggregate.norm_counts, [0.5])[0]
        mean = WeightedMean().next(None, aggregate, round_number)
        if median is None or mean.delta is None:
            return mean._replace(state=state)
        delta = mean.delta if state else _longer(mean.delta, median / _SHORTEST)
        metrics = {"update_norm_bound": bound if state else median}
        return MeanUpdate(delta, (*state, median)[-_ROUNDS_REMEMBERED:], metrics)


@functools.partial(jax.jit, donate_argnums=0)
def _longer(delta: Params, factor: jax.Array) -> Params:
    return jax.tree_util.tree_map(lambda leaf: leaf * factor, delta)
