"""Epsilon and noise of a single Gaussian mechanism (Balle and Wang 2018), as the dp-accounting library computes
them; epsilon is bounded from above."""

import functools

import numpy as np

from fedlm.fl_core.privacy.accounting_library import accounting_library

_ROOT = 1e-30
"""Absolute error of the search for epsilon, so that the relative one of float64 decides."""
_ROUNDING = 1e-14
"""Relative: of that search, and of a difference of two probabilities that agree the more the more noise there is."""


def gaussian_epsilon_above(noise_multiplier: float, delta: float) -> float:
    """Bound epsilon from above, no more than the rounding of float64 from the exact one.

    Args:
      noise_multiplier: standard deviation of the noise, in units of the sensitivity.
      delta: at which epsilon is stated.
    """
    # Two probabilities that are equal in float64 differ by less than any delta that is asked for.
    with np.errstate(divide="ignore"):
        found = float(accounting_library().get_epsilon_gaussian(noise_multiplier, delta, tol=_ROOT))
    return found * (1 + _ROUNDING * (1 + noise_multiplier))


@functools.lru_cache(maxsize=256)
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Find the standard deviation of the noise, in units of the sensitivity, up to the rounding of float64."""
    return float(accounting_library().get_sigma_gaussian(epsilon, delta))
