"""Epsilon and noise of a single Gaussian mechanism (Balle and Wang 2018), as the dp-accounting library computes
them; epsilon is bounded from above, and from below."""

import functools

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.accounting_library import accounting_library

_HARDLY_ANY_NOISE = 1e-6
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
    if noise_multiplier < _HARDLY_ANY_NOISE:
        # The library's search is not that exact. The loss is above this with probability delta.
        shift = 1 / noise_multiplier
        return float(shift**2 / 2 - shift * scipy.special.ndtri(delta)) * (1 + 1e-12)
    # Two probabilities that are equal in float64 differ by less than any delta that is asked for.
    with np.errstate(divide="ignore"):
        found = float(accounting_library().get_epsilon_gaussian(noise_multiplier, delta, tol=_ROOT))
    return found * (1 + _ROUNDING * (1 + noise_multiplier))


def gaussian_epsilon_below(noise_multiplier: float, delta: float) -> float:
    """Bound epsilon from below; see `gaussian_epsilon_above`."""
    if noise_multiplier < _HARDLY_ANY_NOISE:
        # Of what is above epsilon + 1, delta has 1 - 1/e at least.
        shift, above = 1 / noise_multiplier, delta / -np.expm1(-1)
        return float(shift**2 / 2 - shift * scipy.special.ndtri(above) - 1) * (1 - 1e-12) if above < 1 else 0.0
    return max(0.0, gaussian_epsilon_above(noise_multiplier, delta) * (1 - 2 * _ROUNDING * (1 + noise_multiplier)))


@functools.lru_cache(maxsize=256)
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Find the standard deviation of the noise, in units of the sensitivity, up to the rounding of float64."""
    return float(accounting_library().get_sigma_gaussian(epsilon, delta))
