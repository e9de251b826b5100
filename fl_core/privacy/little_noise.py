"""Bounds on epsilon where noise is so little that privacy losses are too large to be added on a grid.

Let a person take part in K releases. By joint convexity delta is at most the mean over K of that of the Gaussian
mechanism with K times the squared sensitivity, in both directions. So with K at most k but with probability delta / 2,
epsilon at delta is at most that mechanism's at delta / 2.

The loss of a release is at least log(1 - q), and where the person takes part at least log q more than without
sampling. So the sum S of T losses is, with the probability that K is k or more, at least `T log(1 - q) + k log q` and a
normal variable of mean k m^2 / 2 and variance k m^2, with m the inverse of the noise multiplier; and delta(epsilon) is
at least `(1 - 1/e) P(S > epsilon + 1)`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import dp_accounting
import numpy as np
import scipy.special
import scipy.stats

_CANDIDATES = 10_000


class Releases(NamedTuple):
    """Releases with Gaussian noise, of which a person is in some.

    Attributes:
      number: how many.
      probability: with which the person is in each.
      shift: what the person changes it by, in standard deviations of the noise.
      cut: probability, for each, that the person may be there for somebody else, which moves it at most four times
        as far.
    """

    number: int
    probability: float
    shift: float
    cut: float = 0.0


def upper_epsilon(releases: Sequence[Releases], delta: float) -> float:
    """Bound epsilon of all releases at delta from above."""
    parts = [(one.number, one.probability, one.shift) for one in releases]
    parts += [(one.number, one.cut, 4 * one.shift) for one in releases if one.cut]
    squared = 0.0
    for count, probability, shift in parts:
        left = delta / 2 / len(parts)
        times = int(scipy.stats.binom.isf(left, count, probability))
        while scipy.stats.binom.sf(times, count, probability) > left:
            times += 1
        squared += times * shift**2
    return float(dp_accounting.get_epsilon_gaussian(squared**-0.5, delta / 2)) if squared else 0.0


def lower_epsilon(releases: Sequence[Releases], delta: float) -> float:
    """Bound epsilon of all releases at delta from below, by that of one of them."""
    return max((_lower_epsilon(one, delta / -math.expm1(-1)) for one in releases), default=0.0)


def _lower_epsilon(releases: Releases, tail: float) -> float:
    count, probability, shift, cut = releases
    likely = math.exp(count * math.log1p(-cut)) if cut < 1 else 0.0
    if not tail < likely:
        return 0.0
    most = min(count, int(scipy.stats.binom.isf(tail / likely, count, probability)) + 1)
    times = np.unique(np.linspace(1, most, min(most, _CANDIDATES)).astype(int))
    as_often = likely * scipy.stats.binom.sf(times - 1, count, probability)
    part = tail / np.maximum(as_often, tail)
    never = math.log1p(-probability) * count if probability < 1 else 0.0
    bounds = never + times * (math.log(probability) + shift**2 / 2) - np.sqrt(times) * shift * scipy.special.ndtri(part)
    return max(0.0, float(np.max(bounds)) - 1.0)
