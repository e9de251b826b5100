"""Epsilon of many releases together, whichever plans they were made under: one accountant over all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import dp_accounting
from dp_accounting import pld


@dataclass(frozen=True)
class GaussianEvent:
    """Releases of sums with independent Gaussian noise, each sum with or without the person by Poisson sampling.

    All correlated noise of one run is a single release, whose multiplier is `noise_multiplier / sensitivity`.

    Attributes:
      noise_multiplier: standard deviation of the noise, in units of what one person changes the sum by at most.
      count: how many such releases there are.
      sampling_probability: with which the person takes part in each, independently and in secret; 1 for always.
      population: how many there are to sample from, where rounds are truncated; else None.
      most: that a round keeps, a uniformly random part of those sampled, where rounds are truncated; else None.
    """

    noise_multiplier: float
    count: int = 1
    sampling_probability: float = 1.0
    population: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class StatedEvent:
    """Releases of which nothing is known but that each is (epsilon, delta)-differentially private.

    Attributes:
      epsilon: of each.
      delta: of each.
      count: how many such releases there are.
    """

    epsilon: float
    delta: float = 0.0
    count: int = 1


Event = GaussianEvent | StatedEvent


class EpsilonBounds(NamedTuple):
    """Between which the epsilon of the events lies, were each of them the worst that its description allows.

    Attributes:
      upper: what may be promised.
      lower: below which no analysis of the same description can come; 0 where none was computed.
    """

    upper: float
    lower: float


def epsilon_bounds(events: Sequence[Event], delta: float) -> EpsilonBounds:
    """Compose events, all about the same person, into one epsilon at delta.

    It holds under zero-out, and under add-or-remove where each of the events alone holds under it; later releases may
    depend on earlier ones in any way.
    """
    composed = pld.privacy_loss_distribution.identity()
    for event in events:
        composed = composed.compose(_loss(event))
    return EpsilonBounds(float(composed.get_epsilon_for_delta(delta)), 0.0)


def _loss(event: Event) -> pld.privacy_loss_distribution.PrivacyLossDistribution:
    make = pld.privacy_loss_distribution
    if isinstance(event, StatedEvent):
        stated = dp_accounting.pld.common.DifferentialPrivacyParameters(event.epsilon, event.delta)
        return make.from_privacy_parameters(stated).self_compose(event.count)
    if event.population is not None and event.most is not None:
        return make.from_truncated_subsampled_gaussian_mechanism(
            event.population, event.sampling_probability, event.most, event.noise_multiplier
        ).self_compose(event.count)
    if event.sampling_probability == 1:
        return make.from_gaussian_mechanism(event.noise_multiplier / math.sqrt(event.count))
    return make.from_gaussian_mechanism(event.noise_multiplier, sampling_prob=event.sampling_probability).self_compose(
        event.count
    )
