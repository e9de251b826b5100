"""Epsilon and noise of a single Gaussian mechanism (Balle and Wang 2018), as the dp-accounting library computes
them; epsilon is bounded from above, and from below."""

import functools
import math

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.accounting_library import accounting_library

_HARDLY_ANY_NOISE = 1e-6
_SMALL_SHIFT = 0.01
_ROOT = 1e-30
"""Absolute error of the search for epsilon, so that the relative one of float64 decides."""
_ROUNDING = 1e-14
"""Relative: of that search, and of a difference of two probabilities that agree the more the more noise there is."""
_OF_DELTA = 4e-15
"""Relative: of the larger of these two probabilities (statement 23)."""


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Compute delta of the Gaussian mechanism, exactly (Balle and Wang 2018)."""
    shift = 1 / noise_multiplier
    if shift > _SMALL_SHIFT:
        high = scipy.special.log_ndtr(shift / 2 - epsilon / shift)
        low = epsilon + scipy.special.log_ndtr(-shift / 2 - epsilon / shift)
        return float(math.exp(high) * -math.expm1(min(low - high, 0.0)))
    # The two agree in too many digits: the integral of their difference, over outcomes above where the loss is epsilon.
    least = epsilon / shift - shift / 2
    width = 1 / (1 + least)

    def part(place: float) -> float:
        outcome = place * width
        return math.exp(-outcome * (least + outcome / 2)) * -math.expm1(-shift * outcome)

    found, _ = scipy.integrate.quad(part, 0.0, 60.0, epsabs=0.0, epsrel=1e-12)
    return float(found) * width * math.exp(-(least**2) / 2) / math.sqrt(2 * math.pi)


def gaussian_epsilon_above(noise_multiplier: float, delta: float) -> float:
    """Bound epsilon from above, no more than the rounding of float64 from the exact one (statement 23).

    Args:
      noise_multiplier: standard deviation of the noise, in units of the sensitivity.
      delta: at which epsilon is stated.
    """
    if noise_multiplier < _HARDLY_ANY_NOISE:
        # The library's search is not that exact. The loss is above this with probability delta.
        shift = 1 / noise_multiplier
        return float(shift**2 / 2 - shift * scipy.special.ndtri(delta)) * (1 + 1e-12)
    found, error = _found_and_error(noise_multiplier, delta)
    return max(found * (1 + _ROUNDING * (1 + noise_multiplier)), found + error)


def gaussian_epsilon_below(noise_multiplier: float, delta: float) -> float:
    """Bound epsilon from below; see `gaussian_epsilon_above`."""
    if noise_multiplier < _HARDLY_ANY_NOISE:
        # Of what is above epsilon + 1, delta has 1 - 1/e at least.
        shift, above = 1 / noise_multiplier, delta / -np.expm1(-1)
        return float(shift**2 / 2 - shift * scipy.special.ndtri(above) - 1) * (1 - 1e-12) if above < 1 else 0.0
    found, error = _found_and_error(noise_multiplier, delta)
    return max(0.0, min(found * (1 - _ROUNDING * (1 + noise_multiplier)), found - error))


def _found_and_error(noise_multiplier: float, delta: float) -> tuple[float, float]:
    """Search for epsilon, and bound what rounding of delta does to it."""
    shift = 1 / noise_multiplier
    if scipy.special.erf(shift / math.sqrt(8)) * (1 + _ROUNDING) <= delta:
        return 0.0, 0.0  # delta is no less than the total variation
    # Two probabilities that are equal in float64 differ by less than any delta that is asked for.
    with np.errstate(divide="ignore"):
        found = float(accounting_library().get_epsilon_gaussian(noise_multiplier, delta, tol=_ROOT))
    own = float(scipy.special.log_ndtr(shift / 2 - found / shift))
    other = found + float(scipy.special.log_ndtr(-shift / 2 - found / shift))
    return found, _OF_DELTA * math.exp(min(own - other, 700.0))


@functools.lru_cache(maxsize=256)
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Find the standard deviation of the noise, in units of the sensitivity, up to the rounding of float64."""
    return float(accounting_library().get_sigma_gaussian(epsilon, delta))
