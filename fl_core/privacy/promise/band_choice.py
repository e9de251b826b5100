"""How many bands the noise of a run should have: few are amplified more by sampling, many cancel more noise."""

import math
from collections.abc import Callable

from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan

MOST_BANDS = 32
"""That are tried, since noise has to be kept of all but one, each in the size of the model."""


def prefix_error(plan: PrivacyPlan) -> float:
    """Compute the root of the mean over steps t of the variance of noise in the sum of the first t, in clip norms."""
    return plan.noise_multiplier * math.sqrt(MECHANISMS[plan.mechanism].prefix_variance(plan).mean())


def best_bands(calibrated: Callable[[int], PrivacyPlan], most: int) -> PrivacyPlan:
    """Choose among powers of two, while the error of prefix sums falls.

    Args:
      calibrated: from a number of bands to the plan that reaches the run's target with them.
      most: bands that there can be.
    """
    best, bands = calibrated(1), 2
    while bands <= min(most, MOST_BANDS):
        tried = calibrated(bands)
        if prefix_error(tried) >= prefix_error(best):
            break
        best, bands = tried, 2 * bands
    return best
