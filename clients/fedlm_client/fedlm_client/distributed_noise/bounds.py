"""How long a client's vector of integers may be, and how fine the integers are.

Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian mechanism for federated learning with secure
aggregation"; Agarwal, Kairouz and Liu 2021, "The Skellam mechanism for differentially private federated learning".
"""

import math
from typing import NamedTuple

ROUNDING_SLACK = math.exp(-0.5)
"""beta: rounding keeps to the bound with probability 1 - beta at least, and is tried again where it does not."""
WRAP_DEVIATIONS = 4
"""Standard deviations of a coordinate of the sum that are kept free of wrapping."""
MOST_DEVIATION = 4096.0
"""Of a client's noise, in integers: beyond it finer integers gain nothing, and tables of noise grow."""
LEAST_DEVIATION = 0.5
"""Of a client's discrete Gaussian noise, in integers, below which nothing is known of sums of such noise."""
MOST_LENGTH = 2.0**20
"""Of a clipped vector, in integers: so squares of norms stay far below 2^63."""


class Sensitivity(NamedTuple):
    """How much one client moves a sum of integers."""

    l1: float
    l2: float


def padded(coordinates: int) -> int:
    """Count the coordinates of a rotated vector: the next power of two."""
    return 1 << max(coordinates - 1, 0).bit_length()


def rounded_norm_squared(length: float, dimension: int, slack: float = ROUNDING_SLACK) -> float:
    """Bound the squared L2 norm of a vector that is rounded to integers at random.

    Args:
      length: L2 norm before rounding, in integers.
      dimension: D, coordinates of the rotated vector.
      slack: beta; 0 for a bound that always holds.
    """
    always = (length + math.sqrt(dimension)) ** 2
    if slack == 0:
        return always
    spread = math.sqrt(2 * math.log(1 / slack)) * (length + math.sqrt(dimension) / 2)
    return min(always, length**2 + dimension / 4 + spread)


def integer_sensitivity(length: float, dimension: int, slack: float = ROUNDING_SLACK) -> Sensitivity:
    """Bound the norms of a client's integers; arguments are those of `rounded_norm_squared`."""
    squared = rounded_norm_squared(length, dimension, slack)
    # The square of an integer is no less than its size.
    return Sensitivity(min(math.sqrt(dimension * squared), squared), math.sqrt(squared))


def lattice_scale(bits: int, cohort: int, dimension: int, *, clip_norm: float, deviation: float) -> float:
    """Choose how many integers there are to one unit of an update, so that sums hardly ever wrap.

    Args:
      bits: of a coordinate of the sum.
      cohort: n, clients of a sum at most.
      dimension: D, coordinates of the rotated vector.
      clip_norm: c, of updates.
      deviation: standard deviation of one client's noise, in units of an update.
    """
    k = WRAP_DEVIATIONS
    spread = math.sqrt((clip_norm * cohort) ** 2 / dimension + cohort * deviation**2)
    scale = math.sqrt(4.0**bits - cohort * k**2) / (2 * k * spread)
    return min(scale, MOST_DEVIATION / deviation, MOST_LENGTH / clip_norm)
