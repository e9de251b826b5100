"""Epsilon and delta of sums of privacy losses, between bounds that hold at any delta that a float can express.

The sum S of the releases' losses has `delta(epsilon) = E[max(0, 1 - exp(epsilon - S))]`. Its distribution is a power of
a Fourier transform. A transform's rounding error is relative to all of the mass, of which delta may be a part of
1e-12. So masses are tilted first: multiplied by `exp(tilt loss)` and divided by their sum M, which moves the bulk to
where epsilon is. With T the tilted masses and M the product of all sums, at a point s of the grid

    delta(s) = M exp(-tilt s) sum over y >= 0 of T(s + y) exp(-tilt y) (1 - exp(-y)),

whose sum is of positive terms, and whose factors stay logarithms to the end. With this all errors are relative to a
mass that is of delta's size. They are bounded, and the bound is in the result:

- of transforms and their powers, in the mean square (`loss_spectra`);
- of what lies outside the window, and of what is cut off: by Chernoff's inequality on the masses themselves;
- of masses on the grid and of where their losses are (`loss_grids`), and of exponentials and sums.

`docs/design/accounting.md` has the proof; statements are numbered there.

Where one rare loss is so large that no tilt brings it together with the others, there are two ways out. Losses that are
far above epsilon need not be computed (`MixedLoss.cap`): with J the event that there is one,
`P(J) - exp(epsilon) Q(J) <= E[max(0, 1 - exp(epsilon - S)); J] <= P(J)`. And where only sums with a large loss reach
epsilon, only these are computed, and the others are bounded by Chernoff's inequality.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.loss_grids import GridMasses, cells_of, fitting_offset
from fedlm.fl_core.privacy.accounting.loss_pairs import MixedLoss
from fedlm.fl_core.privacy.accounting.loss_spectra import UNIT, Factor, masses_of_sums, transform
from fedlm.fl_core.privacy.accounting.loss_windows import (
    FEWEST_POINTS,
    OF_TAILS,
    Losses,
    Window,
    chernoff_delta,
    chernoff_epsilon,
    largest_sum,
    log_peak,
    mass_above,
    total_variation,
    window_for_delta,
    window_for_epsilon,
    window_of_jumps,
    with_cap_for_delta,
    with_cap_for_epsilon,
)

_SMALL_ERROR = 1e-4  # of delta
_SMALL_ROUNDING = 2e-3  # of epsilon
_MANY_POINTS = 1 << 17  # for more, a cap is tried first
_MOST_POINTS = 1 << 21
_WIDEST = 100.0  # spacing
_MOST_FINER_POINTS = 1 << 20  # where more than two times as many were wanted
_GUESSES = 4  # of where epsilon is, each from the one before
_MOST_EXPONENT = 700.0  # that e is taken to the power of: e^709 is the largest float (statement 18)
_LEAST = 1e-290  # error, so that it has a logarithm (statement 18)
_LITTLE = 1e-9  # relative error of the few operations that nothing else counts, with room to spare (statement 17)


class _Profile(NamedTuple):
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
        held = float(self.over[place] - self.steep[place] * math.expm1(-step)) + _grown(self.error, self.tilt * step)
        return math.exp(min(0.0, math.log(held) + self.log_moment - self.tilt * float(self.sums[place]) + self.factor))


def upper_epsilon(losses: Losses, delta: float, finer: int = 0) -> float:
    """Bound epsilon at delta from above; grids with 2^finer times as many points bound it more closely."""
    if total_variation(losses) <= delta:
        return 0.0
    quick = chernoff_epsilon(losses, delta)
    return min(_epsilon(losses, delta, finer, below=False, near=quick), quick) * (1 + _LITTLE)


def lower_epsilon(losses: Losses, delta: float, finer: int = 0, near: float | None = None) -> float:
    """Bound epsilon at delta from below; grids with 2^finer times as many points bound it more closely, and it may help
    to know what it is near to."""
    if total_variation(losses) <= delta:
        return 0.0
    return _epsilon(losses, delta, finer, below=True, near=near) * (1 - _LITTLE)


def upper_delta(losses: Losses, epsilon: float) -> float:
    """Bound delta at epsilon from above."""
    losses = with_cap_for_epsilon(losses, epsilon)
    quick = min(1.0, chernoff_delta(losses, epsilon))
    if largest_sum(losses) <= epsilon:
        return quick
    window: Window | None = window_for_epsilon(losses, epsilon, max(quick, 1e-250))
    found = quick
    for _ in range(2):
        if window is None or _is_too_wide(window):
            break
        profile = _computed(losses, window, 0, below=False)
        if epsilon <= profile.sums[-1]:
            at = epsilon - profile.shift
            found = min(found, profile.between(at) + float(profile.beside(np.asarray(at))))
        if profile.log_error(epsilon) < math.log(_SMALL_ERROR * found):
            break
        window = window_of_jumps(losses, epsilon, found)
    return min(1.0, found)


def _epsilon(losses: Losses, delta: float, finer: int, *, below: bool, near: float | None) -> float:
    infinite = -math.expm1(sum(count * math.log1p(-loss.infinite) for count, loss in losses))
    if infinite and delta <= infinite * (1 - OF_TAILS if below else 1 + OF_TAILS):
        return math.inf
    better, found = (max, 0.0) if below else (min, math.inf)

    def is_close(window: Window) -> bool:
        """Better what is found, where the grid has not too many points; tell whether errors and rounding are small."""
        nonlocal found
        if _is_too_wide(window) or (finer > 1 and _points(window, finer) > _MOST_FINER_POINTS):
            return False
        profile = _computed(losses, window, finer, below)
        here = _solve(profile, delta)
        found = better(found, here)
        # What rounding to the grid adds to epsilon, as in the choice of the spacing.
        rounding = releases * (profile.sums[1] - profile.sums[0]) ** 2 * (window.tilt + 1) / 8
        is_small = here < math.inf and profile.log_error(here) < math.log(_SMALL_ERROR * left)
        return is_small and (here == 0 or rounding < _SMALL_ROUNDING * here)

    releases = sum(count for count, _ in losses)
    left = delta - mass_above(losses, 0.0)[0]
    if left <= 0:
        return found
    window = window_for_delta(losses, left)
    tried = _points(window, finer) <= _MANY_POINTS
    if tried and is_close(window):
        return found
    # The tilt did not move the bulk to epsilon, so that the error is large there, or the window is.
    fewer = with_cap_for_delta(losses, delta)
    if fewer is not losses:
        losses, left, tried = fewer, delta - mass_above(fewer, 0.0)[0], False
        window = window_for_delta(losses, left)
    if not tried and is_close(window):
        return found
    guess = found if 0 < found < math.inf else chernoff_epsilon(losses, delta)
    if guess < math.inf and is_close(window_for_epsilon(losses, guess, left)):
        return found
    guess = near if below and near is not None else found
    for _ in range(_GUESSES):
        with_jump = window_of_jumps(losses, guess, left) if 0 < guess < math.inf else None
        if with_jump is None or is_close(with_jump) or below or found > 0.95 * guess:
            break
        guess = found
    return found


def _computed(losses: Losses, window: Window, finer: int, below: bool) -> _Profile:
    points = min(_points(window, finer), _MOST_POINTS)
    spacing = (window.high - window.low) / (points - 2)
    parts = [(count, _on_grid(loss, spacing, window.tail, points, below=below)) for count, loss in losses]
    own, other = mass_above(losses, window.tail)
    sign = -1.0 if below else 1.0
    above = own * (1 + sign * OF_TAILS), other * (1 + OF_TAILS)
    return _profile(parts, above, spacing, points=points, window=window, below=below)


def _is_too_wide(window: Window) -> bool:
    """Whether even the finest grid is so coarse that exponentials of its spacing are beyond float64."""
    return (window.high - window.low) / _MOST_POINTS > _WIDEST


def _points(window: Window, finer: int) -> int:
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
) -> _Profile:
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
    factor = errors + 16 * UNIT * tilt * farthest + points * 8 * UNIT + _LITTLE
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
    return _Profile(
        below,
        sums[kept],
        over,
        steep,
        tilt=tilt,
        log_moment=log_moment,
        error=max(error, _LEAST),
        factor=factor,
        log_rest=log_rest + log_peak(window.rest_tilt) + errors + 16 * UNIT * window.rest_tilt * farthest + _LITTLE,
        rest_tilt=window.rest_tilt,
        above=above,
        shift=shift,
    )


def _weighed(tilted: np.ndarray, spacing: float, tilt: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute `over` and `steep` of `_Profile`, each from the point above, so that all terms are positive."""
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


def _grown(error: float, exponent: float) -> float:
    """Multiply by e to the power of an exponent: infinity is above any error, so that bounds hold."""
    if exponent > _MOST_EXPONENT:
        return math.inf if error else 0.0
    return error * math.exp(exponent)


def _solve(profile: _Profile, delta: float) -> float:
    """Find where the bound on delta(epsilon) passes delta."""
    found = _solved_on_grid(profile, delta)
    return max(0.0, found - profile.shift) if profile.below else found + profile.shift


def _solved_on_grid(profile: _Profile, delta: float) -> float:
    sums, below = profile.sums, profile.below
    left = delta - profile.beside(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        too_much = np.flatnonzero((left <= 0) | (profile.log_computed() > np.log(left)))
    if not len(too_much):
        return 0.0
    place = int(too_much[-1]) + 1
    if place == len(sums):
        return max(0.0, float(sums[-1])) if below else math.inf
    # Between two points the same losses lie above. Errors are no more than at the first, and all else is no less than
    # at the second.
    low, high = float(sums[place - 1]), float(sums[place])
    error = _grown(profile.error, profile.tilt * (high - low))
    remains = float(left[place] if below else left[place - 1])
    if remains <= 0 or profile.steep[place] <= 0:
        return max(0.0, low if below else high)
    sign = -1.0 if below else 1.0
    log_wanted = math.log(remains) - sign * profile.factor - profile.log_moment + profile.tilt * high
    wanted = math.exp(min(log_wanted, _MOST_EXPONENT)) - sign * error
    part = (wanted - float(profile.over[place])) / float(profile.steep[place])
    step = -math.log1p(-part) if 0 < part < 1 else high - low if part > 0 else 0.0
    return max(0.0, high - min(step, high - low))
