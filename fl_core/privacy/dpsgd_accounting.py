"""The accounting of central DP-SGD, by dp-accounting's privacy loss distributions."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import dp_accounting
from dp_accounting import pld

from fl_core.errors import ConfigurationError
from fl_core.privacy.accounting import ADD_OR_REMOVE_EXAMPLE, EXAMPLE, Guarantee, check_delta, least_noise

_ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclass(frozen=True)
class DpSgdSchedule:
    """What central training with DP-SGD does.

    Attributes:
      examples: N.
      batch_size: B, examples of a batch on average: each is in it with probability B / N.
      steps: T.
      noise_multiplier: standard deviation of the noise on a step's sum, in clip norms.
      truncated_batch_size: a batch of more loses some at random; None where batches are taken whole.
    """

    examples: int
    batch_size: int
    steps: int
    noise_multiplier: float
    truncated_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("examples", "batch_size", "steps"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.batch_size > self.examples:
            raise ConfigurationError(f"batch_size is {self.batch_size}, but there are only {self.examples} examples")
        if self.truncated_batch_size is not None and self.truncated_batch_size < self.batch_size:
            raise ConfigurationError(
                f"truncated_batch_size is {self.truncated_batch_size}, but must not be below batch_size, "
                f"{self.batch_size}"
            )
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise ConfigurationError(f"noise_multiplier is {self.noise_multiplier}, but must be positive and finite")

    @property
    def sampling_probability(self) -> float:
        """With which an example is in a batch."""
        return self.batch_size / self.examples

    def event(self) -> dp_accounting.DpEvent:
        """Describe the whole of training to dp-accounting."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        step = dp_accounting.PoissonSampledDpEvent(self.sampling_probability, gaussian)
        if self.truncated_batch_size is not None:
            step = dp_accounting.TruncatedSubsampledGaussianDpEvent(
                self.examples, self.sampling_probability, self.truncated_batch_size, self.noise_multiplier
            )
        return dp_accounting.SelfComposedDpEvent(step, self.steps)


def account_dpsgd(schedule: DpSgdSchedule, delta: float) -> Guarantee:
    """Account central training.

    Args:
      schedule: what it does.
      delta: at which to state epsilon.

    Returns:
      The guarantee; it has neither rho nor a sensitivity of all steps, since sampling amplifies each step.

    Raises:
      ConfigurationError: delta is not a probability.
    """
    check_delta(delta)
    sampled = (
        f"each example is in a batch independently with probability {schedule.sampling_probability:.6g}, in secret"
    )
    if schedule.truncated_batch_size is not None:
        sampled += f"; a batch of more than {schedule.truncated_batch_size} loses examples uniformly at random"
    return Guarantee(
        mechanism="dpsgd" if schedule.truncated_batch_size is None else "dpsgd, truncated Poisson",
        epsilon=_epsilon(schedule, delta),
        delta=delta,
        rho=None,
        sensitivity=None,
        noise_multiplier=schedule.noise_multiplier,
        rounds=schedule.steps,
        unit=EXAMPLE,
        adjacency=ADD_OR_REMOVE_EXAMPLE,
        assumptions=(
            sampled,
            "each example's gradient is clipped, and the noised sum is divided by a number fixed beforehand",
            "the seed of the noise stays secret, and its generator cannot be told from chance; noise is drawn in "
            "32-bit floating point",
        ),
    )


def calibrate_dpsgd(with_noise: Callable[[float], DpSgdSchedule], epsilon: float, delta: float) -> DpSgdSchedule:
    """Find the least noise for an epsilon.

    Args:
      with_noise: makes the schedule of a noise multiplier.
      epsilon: the most that it may be.
      delta: at which.

    Returns:
      The schedule with that noise multiplier.

    Raises:
      ConfigurationError: epsilon is not positive, or delta not a probability.
    """
    check_delta(delta)
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigurationError(f"epsilon is {epsilon}, but must be positive and finite")
    return with_noise(least_noise(lambda noise: _epsilon(with_noise(noise), delta), epsilon))


def _epsilon(schedule: DpSgdSchedule, delta: float) -> float:
    accountant = pld.PLDAccountant(_ADD_OR_REMOVE)
    return float(accountant.compose(schedule.event()).get_epsilon(delta))
