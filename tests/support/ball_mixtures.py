"""Delta of two steps of which a person is in one at most, in Arb's balls: sums from below and above over cells."""

import itertools
from collections.abc import Sequence

from flint import arb

_CELLS, _LEAST, _MOST = 12_000, -9, 12  # of the first step's outcome, in standard deviations


def delta_of_two(weights: Sequence[float], noise: float, correlation: float, epsilon: float, *, remove: bool) -> arb:
    """Enclose delta where nothing, the first or the second step moves outputs, with these weights; the correlation is
    of the two moves, 0 at least.

    With W the likelihood ratio it is the mean of (W - k)+, or of k (1 / k - W)+. Given the first outcome, the mean over
    the second is the price of an option, which rises with the first, or falls. So each cell is between its ends.
    """
    never, first, second = (arb(one) for one in weights)
    k, shift, together = arb(epsilon).exp(), 1 / arb(noise), arb(correlation)
    strike, spread = k if remove else 1 / k, shift * (1 - together**2).sqrt()

    def price(x: arb) -> arb:
        left = strike - never - first * (shift * x - shift**2 / 2).exp()
        mean = second * (shift * together * x - (shift * together) ** 2 / 2).exp()
        if left <= 0:
            return mean - left if remove else arb(0)
        place, sign = (mean / left).log() / spread, 1 if remove else -1
        return sign * (mean * _below(sign * (place + spread / 2)) - left * _below(sign * (place - spread / 2)))

    points = [arb(_LEAST) + arb(_MOST - _LEAST) * number / _CELLS for number in range(_CELLS + 1)]
    prices, below = [price(x) for x in points], [_below(x) for x in points]
    masses = [right - left for left, right in itertools.pairwise(below)]
    of_left = sum((one * mass for one, mass in zip(prices, masses, strict=False)), arb(0))
    of_right = sum((one * mass for one, mass in zip(prices[1:], masses, strict=False)), arb(0))
    if not remove:  # below the cells, the price is that without the first step at most
        return k * of_right.union(of_left + (strike - never) * below[0] + prices[-1] * (1 - below[-1]))
    beyond = [_below(x - points[-1]) for x in (arb(0), shift, together * shift)]
    return of_left.union(of_right + prices[0] * below[0] + never * beyond[0] + first * beyond[1] + second * beyond[2])


def _below(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2
