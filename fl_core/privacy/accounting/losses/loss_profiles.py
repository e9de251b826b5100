"""The masses of sums of privacy losses in one window, and bounds on all that is wrong with them.

`loss_sums` says what is computed; statements are those of `docs/design/accounting.md`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.losses.loss_grids import GridMasses, cells_of, fitting_offset
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import MixedLoss
from fedlm.fl_core.privacy.accounting.losses.loss_spectra import UNIT, Factor, masses_of_sums, transform
from fedlm.fl_core.privacy.accounting.losses.loss_windows import FEWEST_POINTS, Window
from fedlm.fl_core.privacy.accounting.losses.quick_bounds import OF_TAILS, Losses, log_peak, mass_above

_MOST_POINTS = 1 << 21
_WIDEST = 100.0  # spacing
MOST_EXPONENT = 700.0  # that e is taken to the power of: e^709 is the largest float (statement 18)
_LEAST = 1e-290  # error, so that it has a logarithm (statement 18)
LITTLE = 1e-9  # relative error of the few operations that nothing else counts, with room to spare (statement 17)


class Profile(NamedTuple):
    """All that bounds on delta are computed from.

    Attributes:
      below: whether they are from below.
      sums: points of the grid, float64 [points], rising from 0 or the point below it.
      over: float64 [points], the sum over y of `T(s + y) exp(-tilt y) (1 - exp(-y))` at each point s.
      steep: float64 [points], the sum of `T(s + y) exp(-(tilt + 1) y)`.
      tilt: lambda.
      log_moment: the logarithm of M.
      error: bound on the error of `over`, larger than 0.
      factor: logarithm of the bound on what relative errors do.
      log_rest: logarithm of the bound on what sums without a jump, and epsilon 0, have; `rest_tilt` times epsilon less
        elsewhere.
      rest_tilt: the window's.
      above: P's and Q's mass above what is computed; from above P's alone counts.
      shift: how far above those of the grid the sums may be, or below.
    """

    below: bool
    sums: np.ndarray
    over: np.ndarray
    steep: np.ndarray
    tilt: float
    log_moment: float
    error: float
    factor: float
    log_rest: float
    rest_tilt: float
    above: tuple[float, float]
    shift: float

    def log_error(self, epsilon: float) -> float:
        """The logarithm of the bound on the error of delta at epsilon."""
        return math.log(self.error) + self.log_moment - self.tilt * epsilon

    def log_computed(self) -> np.ndarray:
        """Bound the logarithm of what delta has of the sums that are computed, float64 [points]."""
        sign = -1.0 if self.below else 1.0
        with np.errstate(divide="ignore"):
            held = np.log(np.maximum(self.over + sign * self.error, 0.0))
        return held + self.log_moment - self.tilt * self.sums + sign * self.factor

    def beside(self, epsilon: np.ndarray) -> np.ndarray:
        """Bound what delta has of all else."""
        own, other = self.above
        with np.errstate(over="ignore"):
            if self.below:
                return np.maximum(own - np.exp(epsilon) * other, 0.0) if other else np.full_like(epsilon, own)
            return own + np.exp(self.log_rest - self.rest_tilt * epsilon)

    def between(self, epsilon: float) -> float:
        """Bound what delta has of the sums that are computed, at an epsilon up to the last point, from above."""
        place = int(np.searchsorted(self.sums, epsilon))
        step = float(self.sums[place]) - epsilon
        held = float(self.over[place] - self.steep[place] * math.expm1(-step)) + grown(self.error, self.tilt * step)
        return math.exp(min(0.0, math.log(held) + self.log_moment - self.tilt * float(self.sums[place]) + self.factor))


def computed(losses: Losses, window: Window, finer: int, below: bool) -> Profile:
    """Compute the masses of sums in a window, on a grid of its points or 2^finer times as many."""
    points = min(points_of(window, finer), _MOST_POINTS)
    spacing = (window.high - window.low) / (points - 2)
    parts = [(count, _on_grid(loss, spacing, window.tail, points, below=below)) for count, loss in losses]
    own, other = mass_above(losses, window.tail)
    sign = -1.0 if below else 1.0
    above = own * (1 + sign * OF_TAILS), other * (1 + OF_TAILS)
    return _profile(parts, above, spacing, points=points, window=window, below=below)


def is_too_wide(window: Window) -> bool:
    """Whether even the finest grid is so coarse that exponentials of its spacing are beyond float64."""
    return (window.high - window.low) / _MOST_POINTS > _WIDEST


def points_of(window: Window, finer: int) -> int:
    """Count the points of a window's grid, a power of two."""
    doublings = math.ceil(math.log2((window.high - window.low) / window.spacing)) + finer
    return 1 << max(FEWEST_POINTS.bit_length() - 1, doublings)


def _on_grid(loss: MixedLoss, spacing: float, tail: float, points: int, *, below: bool) -> GridMasses:
    offset = fitting_offset(loss, spacing) if below else 0.0
    cells = cells_of(loss, spacing, offset, tail=tail, most=2 * points)
    return cells.from_below() if below else cells.from_above()


def _profile(
    parts: Sequence[tuple[int, GridMasses]],
    above: tuple[float, float],
    spacing: float,
    *,
    points: int,
    window: Window,
    below: bool,
) -> Profile:
    tilt = window.tilt
    factors = []
    log_moment = log_below = log_above = log_rest = offset = 0.0
    first_tilt, last_tilt = tilt - window.low_tilt, tilt + window.high_tilt
    farthest = shift = errors = 0.0
    for count, grid in parts:
        shift += count * grid.shift
        errors += count * grid.error
        losses = grid.offset + spacing * (grid.first + np.arange(len(grid.masses)))
        farthest += count * float(np.max(np.abs(losses)))
        log_sum = _log_moment(grid.masses, losses, tilt)
        log_moment += count * log_sum
        log_below += count * _log_moment(grid.masses, losses, first_tilt)
        log_above += count * _log_moment(grid.masses, losses, last_tilt)
        with np.errstate(divide="ignore"):
            tilted = np.exp(np.log(grid.masses) + (tilt * losses - log_sum))
        where = np.remainder(grid.first + np.arange(len(losses)), points)
        # Losses rise.
        split = int(np.searchsorted(losses, window.jump, "right"))
        jumps = transform(where[split:], tilted[split:], points)
        others = transform(where[:split], tilted[:split], points) if split else None
        factors.append(Factor(count, jumps, others))
        log_rest += count * _log_moment(grid.masses[:split], losses[:split], window.rest_tilt) if split else -math.inf
        offset += count * grid.offset
    tilted, spread = masses_of_sums(factors, points)
    numbers = math.ceil((window.low - offset) / spacing) + np.arange(points)
    tilted = np.maximum(tilted[np.remainder(numbers, points)], 0.0)
    sums = offset + spacing * numbers
    kept = sums > -spacing - shift
    over, steep = _weighed(tilted[kept], spacing, tilt)
    factor = errors + 16 * UNIT * tilt * farthest + points * 8 * UNIT + LITTLE
    # The root of the sum over points of (exp(-tilt y) (1 - exp(-y)))^2, y their distance to epsilon.
    peak = math.exp(log_peak(tilt))
    error = spread * math.sqrt(1 / (2 * spacing * tilt * (2 * tilt + 1) * (tilt + 1)) + peak**2)
    rounding = 2 * factor + 16 * UNIT * max(window.low_tilt, window.high_tilt) * farthest
    if below:
        # What lies outside the window comes back in at its other end.
        log_outside_above = log_above - log_moment - window.high_tilt * (window.high - spacing) + rounding
        log_outside_below = log_below - log_moment + window.low_tilt * (window.low + spacing) + rounding
        error += (math.exp(min(0.0, log_outside_above)) + math.exp(min(0.0, log_outside_below))) * peak
    else:
        log_outside = log_above - last_tilt * (window.high - spacing) + rounding
        above = above[0] + math.exp(min(0.0, log_outside)), above[1]
    return Profile(
        below,
        sums[kept],
        over,
        steep,
        tilt=tilt,
        log_moment=log_moment,
        error=max(error, _LEAST),
        factor=factor,
        log_rest=log_rest + log_peak(window.rest_tilt) + errors + 16 * UNIT * window.rest_tilt * farthest + LITTLE,
        rest_tilt=window.rest_tilt,
        above=above,
        shift=shift,
    )


def _weighed(tilted: np.ndarray, spacing: float, tilt: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute `over` and `steep` of `Profile`, each from the point above, so that all terms are positive."""
    mild, steep = math.exp(-tilt * spacing), math.exp(-(tilt + 1) * spacing)
    of_steep = scipy.signal.lfilter([1.0], [1.0, -steep], tilted[::-1])
    over = scipy.signal.lfilter([0.0, -mild * math.expm1(-spacing)], [1.0, -mild], of_steep)
    return over[::-1], of_steep[::-1]


def _log_moment(masses: np.ndarray, losses: np.ndarray, tilt: float) -> float:
    with np.errstate(divide="ignore"):
        exponents = tilt * losses + np.log(masses)
    top = float(exponents.max())
    if top == -math.inf:
        # All are below the least number. Leaving so little out moves delta by nothing.
        return top
    return top + math.log(float(np.sum(np.exp(exponents - top))))


def grown(error: float, exponent: float) -> float:
    """Multiply by e to the power of an exponent: infinity is above any error, so that bounds hold."""
    if exponent > MOST_EXPONENT:
        return math.inf if error else 0.0
    return error * math.exp(exponent)
