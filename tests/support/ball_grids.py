"""Privacy losses on grids of whole numbers, from above or from below.

A mass is a whole number of units of 2^-160, rounded up for the upper bound and down for the lower. Products of
polynomials over whole numbers are exact. Points far from where a grid starts lie on coarser grids with the same start,
the scales. `ball_losses` says why what is done here, and to sums (`ball_sums`), only raises delta, or only lowers it.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

from flint import arb

from tests.support.ball_pairs import Release

BITS = 160
"""Masses are whole numbers of units of 2^-BITS."""
PART_BITS = 64
UNIT = arb(2) ** -BITS


@dataclass(frozen=True)
class Frame:
    """What all sums of one composition have in common.

    Attributes:
      points: of a scale.
      upper: whether they are bounds from above.
      side: 1 where scales start at the lowest loss, -1 at the highest.
      far: what is beyond is of no account.
      tail: mass, in units, that may be cut off.
    """

    points: int
    upper: bool
    side: int
    far: float
    tail: int


@dataclass(frozen=True)
class Sums:
    """Masses at `start + side 2^(exponent + scale) index`, and of infinite loss."""

    start: Fraction
    exponent: int
    scales: list[list[int]]
    infinite: int = 0


def ball(number: Fraction) -> arb:
    return arb(number.numerator) / arb(number.denominator)


def _floor(ball: arb) -> int:
    mantissa, exponent = ball.lower().man_exp()
    return _shifted(int(mantissa), int(exponent) + BITS)


def _ceiling(ball: arb) -> int:
    mantissa, exponent = ball.upper().man_exp()
    return -_shifted(-int(mantissa), int(exponent) + BITS)


def _shifted(mantissa: int, exponent: int) -> int:
    return mantissa << exponent if exponent >= 0 else mantissa >> -exponent


@dataclass(frozen=True)
class Cells:
    """Points of all scales from the lowest loss to the highest, and what of a release lies between each two.

    Attributes:
      places: scale and index of each point.
      losses: of the points.
      ratios: their exponentials.
      widths: of the intervals.
      masses: P's and Q's in each interval.
      under: P's below the first point.
      over: P's above the last.
    """

    places: list[tuple[int, int]]
    losses: list[arb]
    ratios: list[arb]
    widths: list[Fraction]
    masses: list[tuple[arb, arb]]
    under: arb
    over: arb


@functools.lru_cache(maxsize=16)
def cells_of(release: Release, start: Fraction, exponent: int, frame: Frame) -> Cells:
    places, points, above = [], [], []
    scale = index = 0
    while True:
        points.append(start + frame.side * Fraction(2) ** (exponent + scale) * index)
        places.append((scale, index))
        ratio = ball(points[-1]).exp()
        own, other = arb(0), arb(0)
        for weight, pair in release.pairs:
            here = pair.above(ratio)
            own, other = own + weight * here[0], other + weight * here[1]
        above.append((own, other))
        beyond = frame.side * (float(points[-1]) - frame.far) > 0
        rest = own if frame.side > 0 else sum((weight for weight, _ in release.pairs), arb(0)) - own
        if index and (beyond or rest < arb(frame.tail) * UNIT):
            break
        index += 1
        if index == frame.points:
            scale, index = scale + 1, frame.points // 2
    if frame.side < 0:
        places, points, above = places[::-1], points[::-1], above[::-1]
    losses = [ball(point) for point in points]
    masses = [(a - b, c - d) for (a, c), (b, d) in itertools.pairwise(above)]
    whole = sum((weight for weight, _ in release.pairs), arb(0))
    return Cells(
        places,
        losses,
        [loss.exp() for loss in losses],
        [b - a for a, b in itertools.pairwise(points)],
        masses,
        whole - above[0][0],
        above[-1][0],
    )


def on_grids(cells: Cells, start: Fraction, exponent: int, frame: Frame) -> Sums:
    """Put a single loss on scales."""
    masses = _of_cells(cells, frame.upper)
    if frame.upper:
        masses[0] += _ceiling(cells.under)
    else:
        masses[-1] += max(0, _floor(cells.over))
    scales = [[0] * (frame.points + 1) for _ in range(1 + max(scale for scale, _ in cells.places))]
    for (scale, index), mass in zip(cells.places, masses, strict=True):
        scales[scale][index] += mass
    return Sums(start, exponent, scales, _ceiling(cells.over) if frame.upper else 0)


def _of_cells(cells: Cells, upper: bool) -> list[int]:
    """Masses at points of what lies between each two of them."""
    masses = [0] * len(cells.places)
    # How far a cell pulls the point above it down, and the point below it up.
    down = [other * ratio - own for (own, other), ratio in zip(cells.masses, cells.ratios[1:], strict=True)]
    if upper:
        for index, ((own, _), pull) in enumerate(zip(cells.masses, down, strict=True)):
            units = max(0, min(_floor(pull / ball(cells.widths[index]).expm1()), _ceiling(own)))
            masses[index] += units
            masses[index + 1] += _ceiling(own) - units
        return masses
    up = [own - other * ratio for (own, other), ratio in zip(cells.masses, cells.ratios, strict=False)]
    whole = [max(0, _floor(own)) for own, _ in cells.masses]
    pulls = [max(1, _ceiling(pull)) for pull in down], [max(0, _floor(pull)) for pull in up]
    for index, (mass, part) in enumerate(zip(whole, parts_up(*pulls), strict=True)):
        masses[index + 1] += mass * part >> PART_BITS
        masses[index] += mass - (mass * part >> PART_BITS)
    return masses


def parts_up(down: list[int], up: list[int]) -> list[int]:
    """Choose parts a of cells that go up, in units of 2^-64, such that `a_i down_i <= (1 - a_(i+1)) up_(i+1)`."""
    one = 1 << PART_BITS
    # The highest cell goes down.
    ratios = [
        here / above if above and here < above << 900 else math.inf for here, above in zip(down, up[1:], strict=False)
    ]
    ratios += [math.inf] * (len(down) - len(ratios))
    parts = [
        int(one / (1 + max(ratio, before)) * (1 - 1e-12))
        for ratio, before in zip(ratios, [0.0, *ratios[:-1]], strict=False)
    ]
    for index in range(len(parts) - 1):
        parts[index] = min(parts[index], (one - parts[index + 1]) * up[index + 1] // down[index])
    return parts
