"""What a run releases about one person, so described that its privacy loss follows."""

import math
from dataclasses import dataclass, replace

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.distributed_noise import RenyiEvent
from fedlm.fl_core.privacy.accounting.joint_convexity import Releases
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import (
    Direction,
    MixedLoss,
    sampled_gaussian,
    stated_loss,
    truncation,
)
from fedlm.fl_core.privacy.accounting.monte_carlo.balls_in_bins import BinnedEvent
from fedlm.fl_core.privacy.accounting.monte_carlo.min_separation import SeparatedEvent
from fedlm.fl_core.privacy.accounting.sampled_examples import MOST_EXAMPLES, BinomialMixturePair

_MOST_STATED = 1e4
_LEAST_NOISE, _MOST_NOISE = 1e-8, 1e10
"""Beyond these, float64 does not tell one loss from another."""
_LEAST_PROBABILITY = 1e-100
"""Below it, a loss of an exponent beyond 600 would be lost (`loss_pairs`)."""
_ROUNDING = 2.0**-53


@dataclass(frozen=True)
class GaussianEvent:
    """Releases of sums with independent Gaussian noise, each sum with or without the person by Poisson sampling.

    All correlated noise of one run is a single release, whose multiplier is `noise_multiplier / sensitivity`.

    Attributes:
      noise_multiplier: standard deviation of the noise, in units of what one person changes the sum by at most.
      count: how many such releases there are.
      sampling_probability: with which the person takes part in each, independently and in secret; 1 for always.
      population: how many there are to sample from, the person among them, where rounds are truncated; else None.
      most: that a round keeps, a uniformly random part of those sampled, where rounds are truncated; else None.
      one_more: whether the person may also be one more than these, so that there are more to take the place of.
    """

    noise_multiplier: float
    count: int = 1
    sampling_probability: float = 1.0
    population: int | None = None
    most: int | None = None
    one_more: bool = False

    def loss(self, direction: Direction) -> MixedLoss:
        """Describe the privacy loss of one of the releases."""
        return sampled_gaussian(self.noise_multiplier, self.sampling_probability, direction, self._truncation())

    def releases(self) -> Releases:
        """Describe the releases without their losses."""
        return Releases(self.count, self.sampling_probability, 1 / self.noise_multiplier, *self._truncation())

    def of_neighbours(self) -> tuple["GaussianEvent", "GaussianEvent"]:
        """Describe the releases for a person who is removed, and for one who is added."""
        if not self.one_more or self.population is None:
            return self, self
        removed = replace(self, one_more=False)
        return removed, replace(removed, population=self.population + 1)

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
          ConfigurationError: one does not.
        """
        _check_sampled(self)

    def _truncation(self) -> tuple[float, float]:
        if self.population is None or self.most is None:
            return 0.0, 0.0
        return truncation(self.sampling_probability, self.population, self.most)


@dataclass(frozen=True)
class ExamplesEvent:
    """Releases of sums with independent Gaussian noise, of examples that are sampled one by one, K of them the user's.

    Attributes:
      noise_multiplier: standard deviation of the noise, in units of what one example changes the sum by at most.
      count: how many such releases there are.
      sampling_probability: q, with which each example is drawn in each, independently and in secret.
      examples: K, that a user has at most.
    """

    noise_multiplier: float
    count: int
    sampling_probability: float
    examples: int

    def loss(self, direction: Direction) -> MixedLoss:
        """Describe the privacy loss of one of the releases."""
        pair = BinomialMixturePair(1 / self.noise_multiplier, self.sampling_probability, self.examples, direction)
        return MixedLoss(((1.0, pair),))

    def no_less(self) -> Releases:
        """Describe releases that are no more private: all examples of the user are in the sum where one would be."""
        probability = -math.expm1(self.examples * math.log1p(-self.sampling_probability))
        return Releases(self.count, min(1.0, probability * (1 + 16 * _ROUNDING)), self.examples / self.noise_multiplier)

    def no_more(self) -> Releases:
        """Describe releases that are no less private: the user has one example alone."""
        return Releases(self.count, self.sampling_probability, 1 / self.noise_multiplier)

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
          ConfigurationError: one does not.
        """
        _check_sampled(self)
        if not 1 <= self.examples <= MOST_EXAMPLES:
            raise ConfigurationError(
                f"{setting('examples_per_user')} is {self.examples}, but must be at least 1, and {MOST_EXAMPLES} at "
                "most"
            )


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

    def loss(self, direction: Direction) -> MixedLoss:
        """Describe the privacy loss of one of the releases."""
        return stated_loss(self.epsilon, self.delta)

    @property
    def given_away(self) -> float:
        """Bound what all of them take of delta where their epsilons are added (statement 22)."""
        return self.count * self.delta * (1 + 9 * _ROUNDING)

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
          ConfigurationError: one does not.
        """
        if not 0 <= self.epsilon <= _MOST_STATED:
            raise ConfigurationError(
                f"the epsilon of an event is {self.epsilon}, but must lie between 0 and {_MOST_STATED:g}"
            )
        if not 0 <= self.delta < 1:
            raise ConfigurationError(f"the delta of an event is {self.delta}, but must be at least 0 and below 1")
        _check_count(self.count)


def _check_sampled(event: GaussianEvent | ExamplesEvent) -> None:
    if not _LEAST_NOISE <= event.noise_multiplier <= _MOST_NOISE:
        raise ConfigurationError(
            f"{setting('noise_multiplier')} is {event.noise_multiplier}, but must lie between {_LEAST_NOISE:g} and "
            f"{_MOST_NOISE:g}"
        )
    if not (event.sampling_probability == 0 or _LEAST_PROBABILITY <= event.sampling_probability <= 1):
        raise ConfigurationError(
            f"{setting('sampling_probability')} is {event.sampling_probability}, but must lie between 0 and 1, and "
            f"be {_LEAST_PROBABILITY:g} at least where it is not 0"
        )
    _check_count(event.count)


def _check_count(count: int) -> None:
    if count < 0:
        raise ConfigurationError(f"the count of an event is {count}, but must be 0 at least")


Plain = GaussianEvent | ExamplesEvent | StatedEvent | RenyiEvent
"""What is composed by one accountant."""
Simulated = BinnedEvent | SeparatedEvent
"""What is accounted by Monte Carlo."""
Event = Plain | Simulated
