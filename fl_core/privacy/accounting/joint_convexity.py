"""Bounds on epsilon where noise is so little that privacy losses are too large to be added on a grid.

Statement 22 of `docs/design/accounting.md` proves them.

Let a person take part in K releases. By joint convexity delta is at most the mean over K of that of the Gaussian
mechanism with K times the squared sensitivity, in both directions. So with K at most k but with probability delta / 2,
epsilon at delta is at most that mechanism's at delta / 2.

Where a sample is cut, the person is in the place of somebody else with probability r, and moves the sum by two shifts
one way in P and the other way in Q. That is four shifts apart; or, since Q is at least 1 - r times the noise alone, two
shifts, and `-log(1 - r)` for each such sample, whoever is in it. The smaller bound is taken.

The loss of a release is at least log(1 - q), and where the person takes part at least log q more than without
sampling. So the sum S of T losses is, with the probability that K is k or more, at least `T log(1 - q) + k log q` and a
normal variable of mean k m^2 / 2 and variance k m^2, with m the inverse of the noise multiplier; and delta(epsilon) is
at least `(1 - 1/e) P(S > epsilon + 1)`. The loss of a sample that is cut is at least log(1 - r) but with the
probability that the noise is half a shift, below 1e-130 for the shifts of little noise.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_epsilon_above

_CANDIDATES = 10_000


class Releases(NamedTuple):
    """Releases with Gaussian noise, of which a person is in some.

    Attributes:
      number: how many.
      probability: with which the person is in each.
      shift: what the person changes it by, in standard deviations of the noise.
      cut: probability, for each, that somebody is left out, so that the person may be there for somebody else.
      replaced: probability that the person is there then.
    """

    number: int
    probability: float
    shift: float
    cut: float = 0.0
    replaced: float = 0.0


_LARGE_SHIFT = 50.0
"""From which half a shift is more noise than 1e-130 says."""


def upper_epsilon(releases: Sequence[Releases], delta: float) -> float:
    """Bound epsilon of all releases at delta from above."""
    cut = [one for one in releases if one.cut]
    left = delta / 2 / (len(releases) + 2 * len(cut))
    own = math.fsum(_most_times(one.number, (1 - one.cut) * one.probability, left) * one.shift**2 for one in releases)
    for_others = math.fsum(_most_times(one.number, one.cut * one.replaced, left) * one.shift**2 for one in cut)
    beside = math.fsum(
        _most_times(one.number, one.cut, left) * (-math.log1p(-one.replaced) if one.replaced < 1 else math.inf)
        for one in cut
    )
    apart, halfway = own + 16 * for_others, own + 4 * for_others
    return min(_gaussian_epsilon(apart, delta / 2), beside + _gaussian_epsilon(halfway, delta / 2))


def _most_times(number: int, probability: float, tail: float) -> int:
    """Find how often something happens at most, but with the probability `tail`."""
    times = int(scipy.stats.binom.isf(tail, number, probability))
    while scipy.stats.binom.sf(times, number, probability) > tail:
        times += 1
    return times


def _gaussian_epsilon(squared: float, delta: float) -> float:
    return gaussian_epsilon_above(squared**-0.5, delta) if squared else 0.0


def lower_epsilon(releases: Sequence[Releases], delta: float) -> float:
    """Bound epsilon of all releases at delta from below, by that of one of them."""
    return max((_lower_epsilon(one, delta / -math.expm1(-1)) for one in releases), default=0.0)


def _lower_epsilon(releases: Releases, tail: float) -> float:
    count, probability, shift, cut, replaced = releases
    likely, taken, least = 1.0, probability, probability if probability < 1 else 0.0
    if cut and shift >= _LARGE_SHIFT and replaced < 1:
        taken, least = (1 - cut) * probability, max(least, replaced)
    elif cut:
        # Only where no sample is cut.
        likely = math.exp(count * math.log1p(-cut)) if cut < 1 else 0.0
    if not tail < likely:
        return 0.0
    most = min(count, int(scipy.stats.binom.isf(tail / likely, count, taken)) + 1)
    times = np.unique(np.linspace(1, most, min(most, _CANDIDATES)).astype(int))
    as_often = likely * scipy.stats.binom.sf(times - 1, count, taken)
    part = tail / np.maximum(as_often, tail)
    never = math.log1p(-least) * count
    bounds = never + times * (math.log(probability) + shift**2 / 2) - np.sqrt(times) * shift * scipy.special.ndtri(part)
    return max(0.0, float(np.max(bounds)) - 1.0)
