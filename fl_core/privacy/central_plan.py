"""The plan of central training with DP-SGD, whose batches are drawn by Poisson sampling."""

import math

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.participation import PoissonParticipation, TruncatedPoissonParticipation
from fedlm.fl_core.privacy.plan import Adjacency, PrivacyPlan

EXAMPLE = "example: one training example, in all steps"


def central_plan(
    units: int,
    batch_size: int,
    steps: int,
    noise_multiplier: float,
    truncated_batch_size: int | None = None,
    adjacency: Adjacency | None = None,
    unit: str = EXAMPLE,
) -> PrivacyPlan:
    """Plan central training, whose rounds are steps.

    Args:
      units: N, how many units there are.
      batch_size: B, units of a batch on average: each is in it with probability B / N.
      steps: T.
      noise_multiplier: standard deviation of the noise on a step's sum, in clip norms.
      truncated_batch_size: a batch of more loses some at random; None where batches are taken whole.
      adjacency: which data sets are neighbours.
      unit: whose presence is hidden.

    Raises:
      ConfigurationError: a number is out of range.
    """
    for name, value in (("units", units), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigurationError(f"{name} is {value}, but must be at least 1")
    if batch_size > units:
        raise ConfigurationError(f"batch_size is {batch_size}, but there are only {units} to draw from")
    participation = PoissonParticipation(batch_size / units)
    if truncated_batch_size is not None:
        if truncated_batch_size < batch_size:
            raise ConfigurationError(
                f"truncated_batch_size is {truncated_batch_size}, but must not be below batch_size, {batch_size}"
            )
        participation = TruncatedPoissonParticipation(batch_size / units, units, truncated_batch_size)
    return PrivacyPlan("gaussian", steps, noise_multiplier, participation, unit=unit, adjacency=adjacency)


def enough_for_most_batches(batch_size: int, units: int) -> int:
    """Choose where to truncate, so that hardly a batch ever is: the batch size and six standard deviations."""
    return min(units, math.ceil(batch_size + 6 * math.sqrt(batch_size)))
