"""Integer noise from random bytes, by tables of cumulative probabilities: Skellam and discrete Gaussian.

Probabilities are computed in decimal numbers of 70 digits and rounded to 256 binary ones. A draw compares a random
number with them, of which it takes 64 digits; the rest only where these leave it open. So what is drawn is
`TABLE_ERROR` at most in total variation from what is meant.
"""

import decimal
import functools
import math
import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RandomBytes = Callable[[int], bytes]
"""From n to so many bytes, which nobody can tell from chance."""
NoiseKind = Literal["skellam", "discrete_gaussian"]

TABLE_ERROR = 2.0**-155
"""Total variation at most between a draw and what it is meant to be, whatever the table: tails of 2^-160 are cut, and
half a million probabilities at most are rounded."""
MOST_VARIANCE = 2.0**26
_LOG_TAIL = 161 * math.log(2)
_BITS, _HIGH = 256, 64
_CONTEXT = decimal.Context(prec=70, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Integers from `-reach` to `reach`, by the probability that one or a lower one is drawn.

    Attributes:
      reach: the largest.
      high: uint64 [2 reach], the first 64 binary digits of these probabilities, but for the last, which is 1.
      cumulative: all their digits, in units of 2^-256.
    """

    reach: int
    high: NDArray[np.uint64]
    cumulative: list[int]

    def draw(self, count: int, random_bytes: RandomBytes = os.urandom) -> NDArray[np.int64]:
        """Draw so many numbers, independent of each other."""
        words = np.frombuffer(random_bytes(8 * count), "<u8")
        places = np.searchsorted(self.high, words, side="right")
        first = np.searchsorted(self.high, words, side="left")
        for open_one in np.flatnonzero(first != places):  # once in 2^45 draws
            rest = int.from_bytes(random_bytes((_BITS - _HIGH) // 8), "little")
            whole = (int(words[open_one]) << (_BITS - _HIGH)) | rest
            places[open_one] = bisect_right(self.cumulative, whole)
        return places.astype(np.int64) - self.reach


@functools.lru_cache(maxsize=8)
def noise_table(kind: NoiseKind, variance: float) -> NoiseTable:
    """Make the table of a client's noise; it takes tenths of a second for large variances.

    Raises:
      ValueError: the variance is not positive, or too large for a table.
    """
    if not 0 < variance <= MOST_VARIANCE:
        raise ValueError(
            f"the variance of a client's noise is {variance}, but must be positive, {MOST_VARIANCE:g} at most"
        )
    half = _PROBABILITIES[kind](variance)
    with decimal.localcontext(_CONTEXT):
        unit = decimal.Decimal(2**_BITS) / (2 * sum(half[1:]) + half[0])
        sizes = [int(weight * unit) for weight in half]
    sizes[0] = 2**_BITS - 2 * sum(sizes[1:])
    cumulative, total = [], 0
    for size in [*reversed(sizes[1:]), *sizes[:-1]]:
        total += size
        cumulative.append(total)
    high = np.array([min(one, 2**_BITS - 1) >> (_BITS - _HIGH) for one in cumulative], np.uint64)
    return NoiseTable(len(half) - 1, high, cumulative)


def _skellam(variance: float) -> list[decimal.Decimal]:
    """Weigh 0, 1, ... in proportion to their probability, for the difference of two Poisson numbers.

    Modified Bessel functions of the variance, by their recurrence from high orders down (Miller's algorithm), in which
    all terms are positive.
    """
    reach = _reach(lambda x: x * math.asinh(x / variance) - x * x / (math.hypot(x, variance) + variance))
    with decimal.localcontext(_CONTEXT):
        above, weight, step = decimal.Decimal(0), decimal.Decimal(1), 2 / decimal.Decimal(variance)
        found = []
        for order in range(2 * reach + 40, 0, -1):
            if order <= reach:
                found.append(weight)
            above, weight = weight, above + order * step * weight
        return [weight, *reversed(found)]


def _discrete_gaussian(variance: float) -> list[decimal.Decimal]:
    """Weigh 0, 1, ... by exp(-x^2 / (2 variance))."""
    reach = _reach(lambda x: x * x / (2 * variance))
    with decimal.localcontext(_CONTEXT):
        factor = (-1 / (2 * decimal.Decimal(variance))).exp()
        square, weight, found = factor * factor, decimal.Decimal(1), [decimal.Decimal(1)]
        for _ in range(reach):
            weight *= factor
            factor *= square
            found.append(weight)
        return found


_PROBABILITIES = {"skellam": _skellam, "discrete_gaussian": _discrete_gaussian}


def _reach(exponent: Callable[[float], float]) -> int:
    """Find from where on both tails are below 2^-160, by Chernoff's bound `exp(-exponent(x))` of each."""
    low, high = 0, 1
    while exponent(high) < _LOG_TAIL:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exponent(middle) < _LOG_TAIL else (low, middle)
    return high
