"""Privacy losses on a grid, from above and from below.

A loss l between two points of the grid is, from above, moved to both of them so that the masses under P and under Q
stay what they are: the original can be made of the result by merging, so that the result is no more private ("connect
the dots", Doroshenko et al. 2022). From below, the losses around a point of the grid are merged into one, so that the
result can be made of the original. The part of each interval that goes up and the part that goes down are chosen so
that the merged loss is the point's or more. Both err by the square of the grid's spacing.

Masses are integrals by Gauss and Legendre's rule over intervals between the outcomes of neighbouring points. How far
they are off is bounded, and the bounds go with the masses. `docs/design/accounting.md` derives them.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.losses.loss_pairs import LossPair, MixedLoss, SampledGaussianPair

MASS_ERROR = 1e-12
"""Bound on the relative error of a mass but for the rounding of exponents and sums (statement 9)."""
_QUADRATURE = 1e-12
"""Bound on what quadrature does to the part of a mass that goes down, over how far losses reach (statement 9)."""
_STEP = 0.05  # the longest interval, in units of the pair's fineness
_FARTHEST = 12.0  # outcome for which that is short enough (statement 9)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)
_LOCAL = 96  # intervals that an offset is chosen by
_ROUNDING = 4e-15  # of the place of an atom, over its loss (statement 10)
_UNIT = 2.0**-53


class GridMasses(NamedTuple):
    """Masses at the points `offset + spacing * (first + i)` of a grid.

    Attributes:
      masses: under P, float64 [points].
      first: the number of the first point.
      offset: of the grid.
      shift: how much farther up losses may be, or down where masses are from below.
      error: bound on the relative error of each mass.
    """

    masses: np.ndarray
    first: int
    offset: float
    shift: float
    error: float


@dataclass(frozen=True)
class LossCells:
    """The mass of each interval between points of a grid, and the part of it that belongs to the lower point.

    Attributes:
      spacing: between points.
      offset: of the grid.
      first: the number of the lower point of the first interval.
      mass: float64 [intervals].
      low: float64 [intervals], what goes to the lower point so that the masses under P and Q stay the same.
      slack: bound on the error of `low`, relative to `mass`.
      below: mass under the range, not in `mass`.
      below_at: the number of a point that none of it exceeds, counted from the first.
      shift: how far losses may be outside of the interval that they are counted in.
      error: bound on the relative error of `mass`.
    """

    spacing: float
    offset: float
    first: int
    mass: np.ndarray
    low: np.ndarray
    slack: float
    below: float
    below_at: int
    shift: float
    error: float

    def from_above(self) -> GridMasses:
        """Round so that nothing seems more private than it is."""
        low = np.maximum(self.low - self.slack * self.mass, 0.0)
        masses = np.zeros(len(self.mass) + 1)
        masses[:-1] += low
        masses[1:] += self.mass - low
        masses[self.below_at] += self.below
        return GridMasses(masses, self.first, self.offset, self.shift, self.error)

    def from_below(self) -> GridMasses:
        """Merge so that nothing seems less private than it is."""
        low = np.minimum(self.low + self.slack * self.mass, self.mass)
        up = _parts_that_go_up(low * math.exp(self.spacing) * (1 + 1e-12), self.mass - low)
        masses = np.zeros(len(self.mass) + 1)
        masses[1:] += up * self.mass
        masses[:-1] += (1 - up) * self.mass
        return GridMasses(masses, self.first, self.offset, self.shift, self.error)


def _parts_that_go_up(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Choose which part a of each interval's mass is merged into its upper point, the rest into its lower.

    At the point above interval i the merged loss is the point's or more where `a_i low_i <= (1 - a_(i+1)) high_(i+1)`,
    with `low` the pull downwards of interval i, and `high` that upwards of the next. Equality everywhere would lose
    nothing; it is followed from both ends, in the direction in which deviations die out, to the heaviest interval
    (statement 6).
    """
    count = len(low)
    if count < 2:
        return np.zeros(count)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratio = np.nan_to_num(low[:-1] / high[1:], nan=0.0, posinf=1e300)
    ahead, behind = np.append(ratio, 1e300), np.insert(ratio, 0, 0.0)
    smooth = (1 / (1 + np.maximum(ahead, behind))).tolist()
    most = np.minimum(1.0, 1 / np.maximum(ahead, 1e-300)).tolist()
    steps = ratio.tolist()
    heaviest = int(np.argmax(low + high))
    upwards = np.zeros(count)
    value = upwards[0] = most[0]
    last = min(heaviest + 1, count - 1)
    for place in range(last):
        value = min(1 - steps[place] * value, most[place + 1])
        if steps[place] > 1:
            value = min(value, smooth[place + 1])
        upwards[place + 1] = value
    value = 0.0
    downwards = np.zeros(count)
    first = max(heaviest - 1, 0)
    for place in range(count - 2, first - 1, -1):
        value = min(1.0, (1 - value) / steps[place]) if steps[place] > 0 else 1.0
        if steps[place] < 1:
            value = min(value, smooth[place])
        downwards[place] = value
    both = np.minimum(upwards, downwards)
    choices = [
        np.concatenate([upwards[:middle], both[middle : middle + 1], downwards[middle + 1 :]])
        for middle in range(first, last + 1)
    ]
    return min(choices, key=lambda up: float(np.sum(_excess(low, high, up)))) * (1 - 1e-15)


def _excess(low: np.ndarray, high: np.ndarray, up: np.ndarray) -> np.ndarray:
    """By how much merged losses are above their points, in masses, float64 [intervals]: of each lower point."""
    excess = high * (1 - up)
    excess[1:] -= low[:-1] * up[:-1]
    return excess


def cells_of(loss: MixedLoss, spacing: float, offset: float, *, tail: float, most: int) -> LossCells:
    """Integrate a loss over the intervals of a grid.

    Args:
      loss: of one release.
      spacing: of the grid.
      offset: of the grid.
      tail: mass that may be left out at either end; `loss.above` tells what is above.
      most: intervals; the mass of losses that are too low for them is left out too.
    """
    parts = []
    for weight, pair in loss.pairs:
        begin, end = loss.range(pair, tail)
        highest = pair.loss(np.array([end]))
        lowest = float(pair.outcome(highest - most * spacing)[0])
        # A pair whose losses differ by less than they are rounded may find no such outcome.
        lowest = lowest if begin < lowest < end else begin
        left_out = max(tail, pair.below(lowest)) if lowest > begin else tail
        parts.append((weight, *_pair_cells(pair, spacing, offset, begin=lowest, end=end), left_out))
    atoms = loss.atoms_below_cap
    places = [first for _, first, *_ in parts] + [math.floor((at - offset) / spacing) for at, _ in atoms]
    ends = [first + len(mass) for _, first, mass, *_ in parts] + [place + 1 for place in places[len(parts) :]]
    first = min(places)
    mass, low = np.zeros((2, max(ends) - first))
    shift = _ROUNDING * max([abs(at) for at, _ in atoms], default=0.0)
    slack = 3 * shift / -math.expm1(-spacing) + _QUADRATURE
    below, below_at, error = 0.0, 0, MASS_ERROR
    for weight, begin, masses, lows, bounds, left_out in parts:
        inside = slice(begin - first, begin - first + len(masses))
        mass[inside] += weight * masses
        low[inside] += weight * lows
        slack, shift, error = max(slack, bounds.slack), max(shift, bounds.shift), max(error, bounds.error)
        below += weight * left_out
        below_at = max(below_at, begin - first + 1)
    for (at, probability), place in zip(atoms, places[len(parts) :], strict=True):
        share = math.expm1(offset + (place + 1) * spacing - at) / math.expm1(spacing)
        mass[place - first] += probability
        low[place - first] += probability * min(max(share, 0.0), 1.0)
    return LossCells(spacing, offset, first, mass, low, slack, below, below_at, shift, error)


class _Bounds(NamedTuple):
    """See `LossCells`."""

    slack: float
    shift: float
    error: float


def _pair_cells(
    pair: LossPair, spacing: float, offset: float, *, begin: float, end: float
) -> tuple[int, np.ndarray, np.ndarray, _Bounds]:
    """The number of the first interval, masses, those of lower points, and bounds on errors."""
    losses = pair.loss(np.array([begin, end]))
    first, last = (math.floor((value - offset) / spacing) for value in losses)
    points = offset + spacing * np.arange(first + 1, last + 1)
    farthest = max(abs(begin), abs(end)) + 1 / pair.fineness
    step = _STEP * min(pair.fineness, _FARTHEST / farthest)
    regular = np.linspace(begin, end, math.ceil((end - begin) / step) + 1)
    at_points = pair.outcome(points)
    inside = (at_points > begin) & (at_points < end)
    wrong = float(np.max(np.abs(pair.loss(at_points[inside]) - points[inside]), initial=0.0))
    cuts = np.clip(np.concatenate([regular, at_points]), begin, end)
    cuts.sort()
    middle, half = (cuts[1:] + cuts[:-1]) / 2, (cuts[1:] - cuts[:-1]) / 2
    keep = half > 0
    middle, half = middle[keep], half[keep]
    cell = np.floor((pair.loss(middle) - offset) / spacing).astype(np.int64)
    mass, low = np.zeros((2, len(middle)))
    upper = offset + spacing * (cell + 1)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        u = middle + node * half
        to_upper = upper - pair.loss(u)
        wrong = max(wrong, float(-to_upper.min()), float(to_upper.max()) - spacing)
        here = weight * half * np.exp(pair.log_density(u))
        mass += here
        low += here * np.expm1(to_upper)
    scale = 1 / math.sqrt(2 * math.pi)
    cells = cell - first
    masses = np.bincount(cells, mass, last - first + 1) * scale
    lows = np.bincount(cells, low, last - first + 1) * (scale / math.expm1(spacing))
    rounding = pair.rounding(begin, end)
    shift = wrong + rounding
    outermost = max(abs(begin), abs(end)) * np.array([-1.0, 1.0])
    of_parts = 3 * shift + _QUADRATURE * min(1.0, float(np.max(np.abs(pair.loss(outermost)))))
    bounds = _Bounds(
        slack=of_parts / -math.expm1(-spacing) + _QUADRATURE,
        shift=shift,
        error=MASS_ERROR + rounding + _UNIT * (2 * farthest**2 + 8 + float(np.max(np.bincount(cells)))),
    )
    return first, masses, np.clip(lows, 0.0, masses), bounds


def fitting_offset(loss: MixedLoss, spacing: float) -> float:
    """Choose a grid's offset so that hardly anything is lost from below where few intervals have most of the mass.

    Outcomes that hardly change the loss are at one end of a sampled pair's range: at the lowest losses of `remove`, at
    the highest of `add`. There is one offset at which they can be merged into points of the grid exactly.
    """
    if loss.atoms:
        # So little below the first that it is merged into that point.
        return loss.atoms[0][0] - 1e-9 * spacing
    pair = next((pair for _, pair in loss.pairs), None)
    if not isinstance(pair, SampledGaussianPair) or pair.probability == 1:
        return 0.0
    begin, end = loss.range(pair, 1e-15)
    at_end = pair.loss(np.array([begin, end]))
    width = _LOCAL * spacing
    if pair.direction == "remove":
        end = min(end, float(pair.outcome(at_end[:1] + width)[0]))
    else:
        begin = max(begin, float(pair.outcome(at_end[1:] - width)[0]))

    def lost(part: float) -> float:
        _, mass, low, _ = _pair_cells(pair, spacing, part * spacing, begin=begin, end=end)
        low, high = low * math.exp(spacing), mass - low
        excess = _excess(low, high, _parts_that_go_up(low, high))
        # The lowest interval of `add` is not the lowest of all.
        return float(np.sum(excess if pair.direction == "remove" else excess[1:]))

    parts = np.linspace(0, 1, 13)[:-1]
    best = parts[int(np.argmin([lost(part) for part in parts]))]
    found = scipy.optimize.minimize_scalar(
        lost, bounds=(best - 1 / 12, best + 1 / 12), method="bounded", options={"xatol": 1e-6}
    )
    return float(found.x) * spacing
