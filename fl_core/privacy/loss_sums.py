"""Epsilon and delta of sums of privacy losses, between bounds that hold at any delta that a float can express.

The sum S of the releases' losses has `delta(epsilon) = E[max(0, 1 - exp(epsilon - S))]`. Its distribution is a power of
a Fourier transform, and a transform's rounding error is relative to all of the mass, of which delta may be a part of
1e-12. So masses are tilted first: multiplied by `exp(tilt loss)` and divided by their sum M, which moves the bulk to
where epsilon is; and what comes out is multiplied by `exp(-tilt S)` and M's power. With this all errors are relative to
a mass that is of delta's size. They are bounded, and the bound is in the result:

- of transforms and their powers, in the mean square (`loss_spectra`);
- of what lies outside the window, and of what is cut off: by Chernoff's inequality on the masses themselves;
- of masses on the grid, and of their exponentials and sums: `MASS_ERROR` for each release.

Where one large loss decides, which no tilt brings together with what is most likely, only the sums with such a jump are
computed, and the others bounded by Chernoff's inequality.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedlm.fl_core.privacy.loss_grids import MASS_ERROR, GridMasses, cells_of, fitting_offset
from fedlm.fl_core.privacy.loss_pairs import MixedLoss
from fedlm.fl_core.privacy.loss_spectra import UNIT, Factor, masses_of_sums, transform
from fedlm.fl_core.privacy.loss_windows import (
    FEWEST_POINTS,
    Losses,
    Window,
    chernoff_delta,
    chernoff_epsilon,
    infinite_mass,
    log_peak,
    total_variation,
    window_for_delta,
    window_for_epsilon,
    window_of_jumps,
)

_SMALL_ERROR = 1e-4  # of delta
_MOST_POINTS = 1 << 21
_MOST_FINER_POINTS = 1 << 20  # where more than two times as many were wanted
_GUESSES = 4  # of where epsilon is, each from the one before


class _Profile(NamedTuple):
    """All that delta at an epsilon is computed from.

    Attributes:
      sums: points of the window, float64 [points], rising.
      mass: float64 [points], what lies at each point or above it.
      weighed: float64 [points], the same mass times `exp(reference - sum)`.
      apart: float64 [points], the difference of the two, which is exact where it is small; not below `reference - 1`.
      doubt: float64 [points], bound on the rounding of `apart`.
      reference: the tilted mean.
      log_scale: what these are divided by.
      error: bound on the error at the reference, which grows by `exp(tilt)` for each unit that epsilon is below it.
      tilt: lambda.
      rest: bound on what sums without a jump add at the reference, growing by `exp(rest_tilt)` alike.
      rest_tilt: the window's.
      beyond: mass above the window, and of infinite loss, not scaled.
      factor: logarithm of the bound on what relative errors do.
    """

    sums: np.ndarray
    mass: np.ndarray
    weighed: np.ndarray
    apart: np.ndarray
    doubt: np.ndarray
    reference: float
    log_scale: float
    error: float
    tilt: float
    rest: float
    rest_tilt: float
    beyond: float
    factor: float

    def log_error(self, epsilon: float) -> float:
        """The logarithm of the bound on the error of delta at epsilon."""
        return math.log(self.error) + self.log_scale + self.tilt * (self.reference - epsilon)

    def deltas(self, epsilon: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute delta at epsilons, scaled, and bound its error; the place is that of the point at or above each."""
        under = self.reference - epsilon
        rounding = len(self.sums) * 2 * UNIT
        grown, over = np.exp(np.clip(-under, -700.0, 700.0)), np.expm1(np.clip(-under, -1.0, 1.0))
        with np.errstate(over="ignore", invalid="ignore"):
            plain = self.mass[place] - grown * self.weighed[place]
            found = np.where(np.abs(under) <= 1, grown * self.apart[place] - over * self.mass[place], plain)
        here = self.mass[place] * np.where(np.abs(under) <= 1, np.abs(over), 2.0) * rounding
        error = here + np.where(np.abs(under) <= 1, grown * self.doubt[place], 0.0)
        error += self.error * np.exp(np.minimum(self.tilt * under, 700.0))
        return found, error + self.rest * np.exp(np.minimum(self.rest_tilt * under, 700.0))


def upper_epsilon(losses: Losses, delta: float, finer: int = 0) -> float:
    """Bound epsilon at delta from above; grids with 2^finer times as many points bound it more closely."""
    if total_variation(losses) <= delta:
        return 0.0
    quick = chernoff_epsilon(losses, delta)
    return min(_epsilon(losses, delta, finer, below=False, near=quick), quick) * (1 + 1e-9)


def lower_epsilon(losses: Losses, delta: float, finer: int = 0, near: float | None = None) -> float:
    """Bound epsilon at delta from below; grids with 2^finer times as many points bound it more closely, and it may help
    to know what it is near to."""
    if total_variation(losses) <= delta:
        return 0.0
    return _epsilon(losses, delta, finer, below=True, near=near) * (1 - 1e-9)


def upper_delta(losses: Losses, epsilon: float) -> float:
    """Bound delta at epsilon from above."""
    quick = chernoff_delta(losses, epsilon)
    window: Window | None = window_for_epsilon(losses, epsilon, max(quick, 1e-250))
    found = quick
    for _ in range(2):
        if window is None:
            break
        profile = _computed(losses, window, 0, below=False)
        place = int(np.searchsorted(profile.sums, epsilon))
        if place < len(profile.sums):
            above = float(sum(profile.deltas(np.asarray(epsilon), np.asarray(place))))
            found = min(found, math.exp(profile.log_scale + profile.factor) * above + profile.beyond)
        if profile.log_error(epsilon) < math.log(_SMALL_ERROR * found):
            break
        window = window_of_jumps(losses, epsilon, found)
    return min(1.0, found)


def _epsilon(losses: Losses, delta: float, finer: int, below: bool, near: float | None) -> float:
    left = delta - infinite_mass(losses)
    if left <= 0:
        return math.inf
    better, window = max if below else min, window_for_delta(losses, left)
    if finer > 1 and _points(window, finer) > _MOST_FINER_POINTS:
        return 0.0 if below else math.inf
    profile = _computed(losses, window, finer, below)
    found = _solve(profile, delta, below)
    if profile.log_error(found) < math.log(_SMALL_ERROR * left):
        return found
    # The tilt did not move the bulk to epsilon, so that the error is large there.
    guess = found if 0 < found < math.inf else chernoff_epsilon(losses, delta)
    profile = _computed(losses, window_for_epsilon(losses, guess, left), finer, below)
    found = better(found, _solve(profile, delta, below))
    guess = near if below and near is not None else found
    for _ in range(_GUESSES):
        if not 0 < guess < math.inf or profile.log_error(guess) < math.log(_SMALL_ERROR * left):
            break
        with_jump = window_of_jumps(losses, guess, left)
        if with_jump is None:
            break
        found = better(found, _solve(_computed(losses, with_jump, finer, below), delta, below))
        if below or found > 0.95 * guess:
            break
        guess = found
    return found


def _computed(losses: Losses, window: Window, finer: int, below: bool) -> _Profile:
    points = min(_points(window, finer), _MOST_POINTS)
    spacing = (window.high - window.low) / (points - 2)
    parts = [(count, _on_grid(loss, spacing, window.tail, points, below)) for count, loss in losses]
    return _profile(parts, spacing, points, window, below)


def _points(window: Window, finer: int) -> int:
    doublings = math.ceil(math.log2((window.high - window.low) / window.spacing)) + finer
    return 1 << max(FEWEST_POINTS.bit_length() - 1, doublings)


def _on_grid(loss: MixedLoss, spacing: float, tail: float, points: int, below: bool) -> GridMasses:
    offset = fitting_offset(loss, spacing) if below else 0.0
    cells = cells_of(loss, spacing, offset, tail, 2 * points)
    return cells.from_below() if below else cells.from_above()


def _profile(
    parts: Sequence[tuple[int, GridMasses]], spacing: float, points: int, window: Window, below: bool
) -> _Profile:
    tilt = window.tilt
    factors = []
    log_total = log_below = log_above = log_rest = log_finite = offset = 0.0
    first_tilt, last_tilt = tilt - window.low_tilt, tilt + window.high_tilt
    releases = sum(count for count, _ in parts)
    farthest = 0.0
    for count, grid in parts:
        losses = grid.offset + spacing * (grid.first + np.arange(len(grid.masses)))
        farthest = max(farthest, float(np.max(np.abs(losses))))
        log_sum = _log_moment(grid.masses, losses, tilt)
        log_total += count * log_sum
        log_below += count * _log_moment(grid.masses, losses, first_tilt)
        log_above += count * _log_moment(grid.masses, losses, last_tilt)
        tilted = grid.masses * np.exp(np.minimum(tilt * losses - log_sum, 700.0))
        where = np.remainder(grid.first + np.arange(len(losses)), points)
        # Losses rise.
        split = int(np.searchsorted(losses, window.jump, "right"))
        jumps = transform(where[split:], tilted[split:], points)
        others = transform(where[:split], tilted[:split], points) if split else None
        factors.append(Factor(count, jumps, others))
        log_rest += count * _log_moment(grid.masses[:split], losses[:split], window.rest_tilt) if split else -math.inf
        offset += count * grid.offset
        log_finite += count * math.log1p(-grid.infinite)
    tilted, spread = masses_of_sums(factors, points)
    start = math.ceil((window.low - offset) / spacing)
    numbers = start + np.arange(points)
    tilted = np.maximum(tilted[np.remainder(numbers, points)], 0.0)
    sums = offset + spacing * numbers
    reference = float(np.clip(np.sum(tilted * sums) / max(float(np.sum(tilted)), 1e-300), sums[0], sums[-1]))
    log_scale = log_total - tilt * reference
    kept = (sums > -spacing) & (sums > reference - 300 / max(tilt, 1.0))
    sums, tilted = sums[kept], tilted[kept]
    masses = tilted * np.exp(-tilt * (sums - reference))
    apart = -masses * np.expm1(np.minimum(reference - sums, 1.0))
    outside_above = math.exp(min(0.0, log_above - log_total - window.high_tilt * (window.high - spacing)))
    outside_below = math.exp(min(0.0, log_below - log_total + window.low_tilt * (window.low + spacing)))
    # The root of the sum over points of (exp(-tilt y) (1 - exp(-y)))^2, y their distance to epsilon.
    peak = math.exp(log_peak(tilt))
    beyond = -math.expm1(log_finite)
    error = spread * math.sqrt(1 / (2 * spacing * tilt * (2 * tilt + 1) * (tilt + 1)) + peak**2)
    rest = 0.0
    if below:
        error += (outside_above + outside_below) * peak
    else:
        beyond += math.exp(min(0.0, log_total - tilt * window.high)) * outside_above
        rest = math.exp(min(log_rest + log_peak(window.rest_tilt) - window.rest_tilt * reference - log_scale, 700.0))
    return _Profile(
        sums,
        mass=_sums_from(masses),
        weighed=_sums_from(masses * np.exp(reference - sums)),
        apart=_sums_from(apart),
        doubt=_sums_from(np.abs(apart)) * (len(sums) * 2 * UNIT),
        reference=reference,
        log_scale=log_scale,
        error=error,
        tilt=tilt,
        rest=rest,
        rest_tilt=window.rest_tilt,
        beyond=beyond,
        factor=releases * MASS_ERROR * (1 + tilt * farthest * 1e-3) + points * 2 * UNIT + 1e-9,
    )


def _sums_from(values: np.ndarray) -> np.ndarray:
    """Add up what lies at each point or above it."""
    return np.cumsum(values[::-1])[::-1]


def _log_moment(masses: np.ndarray, losses: np.ndarray, tilt: float) -> float:
    exponents = tilt * losses
    top = float(exponents.max())
    # The top itself may have no mass at all, so that what is summed may be small, but not lost.
    with np.errstate(divide="ignore"):
        top = float(np.max(np.where(masses > 0, exponents + np.log(masses), -np.inf)))
    return top + math.log(float(np.sum(masses * np.exp(np.minimum(exponents - top, 700.0)))))


def _solve(profile: _Profile, delta: float, below: bool) -> float:
    """Find where the bound on delta(epsilon) passes delta."""
    sums, sign = profile.sums, -1.0 if below else 1.0
    at_points, errors = profile.deltas(sums, np.arange(len(sums)))
    left = delta - profile.beyond
    if left <= 0:
        return math.inf
    # In the scale of the masses.
    wanted = math.exp(min(math.log(left) - sign * profile.factor - profile.log_scale, 700.0))
    too_much = np.flatnonzero(at_points + sign * errors > wanted)
    if not len(too_much):
        return 0.0 if below else max(0.0, float(sums[0]))
    place = int(too_much[-1]) + 1
    if place == len(sums):
        return max(0.0, float(sums[-1])) if below else math.inf
    # Between two points the same losses lie above, and the errors are no more than at the first.
    _, error = profile.deltas(sums[place - 1], np.asarray(place))
    if profile.weighed[place] <= 0 or profile.mass[place] + sign * error <= wanted:
        return max(0.0, float(sums[place - 1]))
    small = float(profile.apart[place] + sign * error - wanted) / float(profile.weighed[place])
    if abs(sums[place] - profile.reference) <= 1 and small > -0.9:
        above = math.log1p(small)
    else:
        above = math.log(float(profile.mass[place] + sign * error - wanted) / float(profile.weighed[place]))
    return max(0.0, float(np.clip(profile.reference + above, sums[place - 1], sums[place])))
