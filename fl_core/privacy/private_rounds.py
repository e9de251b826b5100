"""What the server of a private run does with a cohort's sum: add noise, divide by a fixed number, move the clip
norm."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.exact_sums import LEAST_CLIP_NORM, MOST_CLIP_NORM, grid_step, number_of_coordinates
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS, make_noise
from fedlm.fl_core.privacy.noise.noise_source import Draw, noise_from
from fedlm.fl_core.privacy.noise.noised_sums import noised_mean
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.rounds.aggregation import CohortAggregate, MeanUpdate
from fedlm.fl_core.rounds.round_loop import CohortRunner
from fedlm.models.base import Params


@dataclass(frozen=True)
class AdaptiveClipping:
    """Moves the clip norm towards a quantile of the updates' norms (Andrew et al. 2021).

    The number of updates that were not clipped is released with each sum, with noise of its own; the noise of the sum
    is a little greater instead, so that both together spend what the plan says: with `z` the plan's multiplier,
    `z_sum = (z^-2 - (2 count_noise)^-2)^(-1/2)`. For a client adds 1/2 to the count where its update was not clipped,
    -1/2 where it was, and 0 where it adds nothing to the sum, so that under both adjacencies it moves the count by at
    most 1/2 and the sum by one clip norm: the Gaussian mechanism on both, each in units of its noise, has sensitivity
    `(z_sum^-2 + (2 count_noise)^-2)^(1/2) = 1 / z`.

    Attributes:
      quantile: the part of updates that should not be clipped.
      rate: eta of `C <- C exp(-eta (unclipped - quantile))`.
      count_noise: standard deviation of one draw of noise on the count, in clients.
    """

    quantile: float
    rate: float
    count_noise: float

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigurationError(f"{setting('clip_quantile')} is {self.quantile}, but must lie between 0 and 1")
        for name in ("rate", "count_noise"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ConfigurationError(
                    f"{setting(f'clip_{name}')} is {getattr(self, name)}, but must be positive and finite"
                )

    def sum_noise(self, noise_multiplier: float) -> float:
        """Compute the multiplier for the sum from the plan's.

        Raises:
          ConfigurationError: the count alone would spend more than the plan says.
        """
        left = noise_multiplier**-2 - (2 * self.count_noise) ** -2
        if left <= 0:
            raise ConfigurationError(
                f"{setting('clip_count_noise')} is {self.count_noise}, but must be above half the noise multiplier, "
                f"{noise_multiplier / 2}: the count of clipped updates would spend all of the privacy"
            )
        return left**-0.5


@dataclass(frozen=True)
class PrivateAggregation:
    """How sums become private means.

    Attributes:
      plan: of the run.
      clip_norm: of updates; the first one, where it moves.
      report_goal: what sums are divided by, whoever reported.
      adaptive_clipping: how the clip norm moves, or None where it stays.
      restart_optimizer: whether the server optimizer forgets its state whenever a tree ends, as DP-FTRL with momentum
        does.
    """

    plan: PrivacyPlan
    clip_norm: float
    report_goal: int
    adaptive_clipping: AdaptiveClipping | None = None
    restart_optimizer: bool = False

    def __post_init__(self) -> None:
        if not LEAST_CLIP_NORM <= self.clip_norm <= MOST_CLIP_NORM:
            raise ConfigurationError(
                f"the clip norm is {self.clip_norm}, but must lie between {LEAST_CLIP_NORM:g} and {MOST_CLIP_NORM:g}"
            )
        if self.report_goal < 1:
            raise ConfigurationError(f"{setting('report_goal')} is {self.report_goal}, but must be at least 1")
        if self.adaptive_clipping is not None and self._clip_norm_moves_every is None:
            raise ConfigurationError(
                f"{setting('clip_quantile')} with the mechanism {self.plan.mechanism}, whose noise is of clients, or "
                "correlated over all rounds: the clip norm may change only where a tree restarts. Take the mechanism "
                "gaussian, or a tree with restarts"
            )
        if self.restart_optimizer and self._begins_anew_every is None:
            raise ConfigurationError("restarting the optimizer does nothing where no tree restarts")
        if self.adaptive_clipping is not None:
            self.adaptive_clipping.sum_noise(self.plan.noise_multiplier)

    @property
    def _clip_norm_moves_every(self) -> int | None:
        return MECHANISMS[self.plan.mechanism].clip_norm_moves_every(self.plan)

    def moves_clip_norm(self, round_number: int) -> bool:
        """Say whether the clip norm moves after a round."""
        every = self._clip_norm_moves_every
        return self.adaptive_clipping is not None and every is not None and (round_number + 1) % every == 0

    @property
    def _begins_anew_every(self) -> int | None:
        return MECHANISMS[self.plan.mechanism].begins_anew_every(self.plan)

    def ends_tree(self, round_number: int) -> bool:
        """Say whether a tree ends with a round."""
        every = self._begins_anew_every
        return every is not None and (round_number + 1) % every == 0


class PrivacyState(NamedTuple):
    """What a private run knows between rounds, beside the server's state.

    Attributes:
      noise: the mechanism's state.
      clip_norm: float32 scalar, of the next round.
      unclipped: float32 scalar, the noised `sum over clients of (not clipped - 1/2)` since the clip norm last moved.
      since: int32 scalar, over how many rounds that sum goes.
    """

    noise: Any
    clip_norm: np.floating
    unclipped: np.floating
    since: np.signedinteger


class PrivateRounds:
    """Private means with one generation of noise."""

    def __init__(
        self, aggregation: PrivateAggregation, secret: bytes, like: Params, *, first: int = 0, end: int | None = None
    ):
        """Take a secret into use.

        Args:
          aggregation: clip norm, denominator and plan.
          secret: of the noise; of this generation alone.
          like: arrays, or shapes, of the model's structure.
          first: the generation's first round.
          end: one more than the last round that it may go to; the plan's end where None.
        """
        if MECHANISMS[aggregation.plan.mechanism].distributed:
            raise ConfigurationError(
                f"the mechanism {aggregation.plan.mechanism} is noise of clients, and here the server adds noise; take "
                "another"
            )
        self.aggregation = aggregation
        self._like = {"delta": like}
        if aggregation.adaptive_clipping is not None:
            self._like["unclipped"] = jax.ShapeDtypeStruct((), jnp.float32)
        self._noise = make_noise(aggregation.plan, first, end)
        self._draw: Draw = noise_from(secret, self._like)

    def init(self, clip_norm: float | None = None) -> PrivacyState:
        """Make the state before the generation's first round; the clip norm is the run's first where None."""
        start = np.float32(self.aggregation.clip_norm if clip_norm is None else clip_norm)
        return PrivacyState(self._noise.init(self._like), start, np.float32(0), np.int32(0))

    def durable(self, state: PrivacyState) -> PrivacyState:
        """Replace the noise's state by what has to be kept of it."""
        return state._replace(noise=self._noise.durable(state.noise))

    def restore(self, durable: PrivacyState) -> PrivacyState:
        """Undo `durable`."""
        return durable._replace(noise=self._noise.restore(durable.noise, self._like, self._draw))

    def over(self, runner: CohortRunner, begin_sum: object = None) -> CohortRunner:
        """Leave cohorts as they are: the noise is the server's."""
        return runner

    def clip_norm(self, state: PrivacyState) -> float:
        return float(state.clip_norm)

    def next(self, state: PrivacyState, aggregate: CohortAggregate, round_number: int) -> MeanUpdate:
        """Turn the sum of a cohort, exact and clipped, into a private mean.

        Among its metrics `noise_norm` is the L2 norm of the noise in the mean; `signal_to_noise` compares that of the
        mean without its noise with it. Neither is private: who sees the mean and the norm of its noise, and knows all
        updates but one, can tell whether that one is in it.

        Raises:
          HorizonError: the last planned round is over.
        """
        setting, adaptive = self.aggregation, self.aggregation.adaptive_clipping
        noise, after = self._noise.next(state.noise, self._draw)
        multiplier = setting.plan.noise_multiplier
        scale = float(state.clip_norm) * (multiplier if adaptive is None else adaptive.sum_noise(multiplier))
        step = grid_step(state.clip_norm, number_of_coordinates(self._like["delta"]))
        with jax.enable_x64(True):
            delta, noise_norm, signal_norm = _noised_mean(
                aggregate.delta,
                noise["delta"],
                scale=np.float64(scale),
                step=np.float64(step),
                divisor=np.float64(setting.report_goal),
            )
        state = state._replace(noise=after)
        counted = float(aggregate.clients - aggregate.dropped)
        if adaptive is not None:
            shifted = counted / 2 - float(aggregate.clipped)
            # The count is a multiple of 1/2, and stays one.
            added = round(2 * adaptive.count_noise * float(noise["unclipped"])) / 2
            unclipped = state.unclipped + shifted + added
            state = state._replace(unclipped=np.float32(unclipped), since=np.int32(state.since + 1))
            if setting.moves_clip_norm(round_number):
                state = _move_clip_norm(adaptive, setting.report_goal, state)
        metrics = {
            "clipped_fraction": float(aggregate.clipped) / counted if counted else None,
            "clip_norm": float(state.clip_norm),
            "noise_norm": float(noise_norm),
            "signal_to_noise": float(signal_norm) / float(noise_norm) if noise_norm else None,
        }
        restart, goal = setting.restart_optimizer and setting.ends_tree(round_number), setting.report_goal
        spread = scale / goal if MECHANISMS[setting.plan.mechanism].independent_rounds else math.inf
        return MeanUpdate(delta, state, metrics, restart, divisor=goal, noise=spread)


_noised_mean = jax.jit(noised_mean)


def _move_clip_norm(adaptive: AdaptiveClipping, report_goal: int, state: PrivacyState) -> PrivacyState:
    part = 0.5 + float(state.unclipped) / (int(state.since) * report_goal)
    factor = math.exp(-adaptive.rate * (min(max(part, 0.0), 1.0) - adaptive.quantile))
    clip_norm = np.clip(state.clip_norm * factor, LEAST_CLIP_NORM, MOST_CLIP_NORM)
    return state._replace(clip_norm=np.float32(clip_norm), unclipped=np.float32(0), since=np.int32(0))
