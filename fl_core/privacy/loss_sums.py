"""Epsilon and delta of sums of privacy losses, between bounds that hold at any delta that a float can express.

The sum S of the releases' losses has `delta(epsilon) = E[max(0, 1 - exp(epsilon - S))]`. Its distribution is a power of
a Fourier transform, and a transform's rounding error is relative to all of the mass, of which delta may be a part of
1e-12. So masses are tilted first: multiplied by `exp(tilt loss)` and divided by their sum M, which moves the bulk to
where epsilon is; and what comes out is multiplied by `exp(-tilt S)` and M's power. With this all errors are relative to
a mass that is of delta's size. They are bounded, and the bound is in the result:

- of transforms, in the mean square: a transform of n numbers errs by at most `_TRANSFORM_ERROR log2(n)` units in the
  last place of the square root of its sum of squares (Higham 2002, "Accuracy and stability of numerical algorithms",
  theorem 24.2), and a product of powers by the sum of its factors' errors;
- of what lies outside the window, and of what is cut off: by Chernoff's inequality on the masses themselves;
- of masses on the grid, and of their exponentials and sums: `MASS_ERROR` for each release.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.fft
import scipy.optimize

from fedlm.fl_core.privacy.loss_grids import MASS_ERROR, GridMasses, cells_of, fitting_offset
from fedlm.fl_core.privacy.loss_pairs import MixedLoss

Losses = Sequence[tuple[int, MixedLoss]]
"""How often each loss is added."""

_UNIT = 2.0**-53
_TRANSFORM_ERROR = 8.0  # in units of rounding, for each doubling of the length
_HEAVIEST = 24  # masses that are transformed one by one on finer grids
_LEFT_OUT = 1e-5  # of delta, cut off at the ends of single losses
_LOG_OUTSIDE = math.log(1e-14)  # of the tilted mass, outside the window
_ROUNDING = 2e-4  # of epsilon, about what grids may add
_SMALL_ERROR = 1e-4  # of delta
_SMALLEST = 1e-40  # what quick bounds on delta leave out
_FEWEST, _MOST = 1 << 10, 1 << 21  # points of the window


@dataclass(frozen=True)
class _Nodes:
    """A loss as weights at outcomes, close enough to choose tilt and window by.

    Attributes:
      count: how often it is added.
      log_mass: float64 [nodes].
      loss: float64 [nodes].
    """

    count: int
    log_mass: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class _Window:
    """Where to compute.

    Attributes:
      tilt: lambda.
      low: of the sums, at most 0.
      high: of the sums.
      low_tilt: the change of tilt that bounds what lies below.
      high_tilt: the change of tilt that bounds what lies above.
      spacing: that makes the error small enough.
      tail: mass to cut off single losses.
    """

    tilt: float
    low: float
    high: float
    low_tilt: float
    high_tilt: float
    spacing: float
    tail: float


class _Profile(NamedTuple):
    """All that delta at an epsilon is computed from.

    Attributes:
      sums: points of the window, float64 [points], rising.
      mass: float64 [points], what lies at each point or above it.
      weighed: float64 [points], the same mass times `exp(-(sum - reference))`.
      reference: the tilted mean.
      log_scale: what these are divided by.
      error: bound on the error at the reference, which grows by `exp(tilt)` for each unit that epsilon is below it.
      tilt: lambda.
      beyond: mass above the window, and of infinite loss, not scaled.
      factor: logarithm of the bound on what relative errors do.
    """

    sums: np.ndarray
    mass: np.ndarray
    weighed: np.ndarray
    reference: float
    log_scale: float
    error: float
    tilt: float
    beyond: float
    factor: float

    def log_error(self, epsilon: float) -> float:
        """The logarithm of the bound on the error of delta at epsilon."""
        return math.log(self.error) + self.log_scale + self.tilt * (self.reference - epsilon)


def upper_epsilon(losses: Losses, delta: float, finer: int = 0) -> float:
    """Bound epsilon at delta from above; grids with 2^finer times as many points bound it more closely."""
    if _total_variation(losses) <= delta:
        return 0.0
    return min(_epsilon(losses, delta, finer, below=False), _chernoff_epsilon(losses, delta)) * (1 + 1e-9)


def lower_epsilon(losses: Losses, delta: float, finer: int = 0) -> float:
    """Bound epsilon at delta from below; grids with 2^finer times as many points bound it more closely."""
    return 0.0 if _total_variation(losses) <= delta else _epsilon(losses, delta, finer, below=True) * (1 - 1e-9)


def upper_delta(losses: Losses, epsilon: float) -> float:
    """Bound delta at epsilon from above."""
    window = _window_for_epsilon(losses, epsilon, max(chernoff_delta(losses, epsilon), 1e-250))
    profile = _computed(losses, window, 0, below=False)
    place = int(np.searchsorted(profile.sums, epsilon))
    if place == len(profile.sums):
        return min(1.0, chernoff_delta(losses, epsilon))
    above = profile.mass[place] - math.exp(epsilon - profile.reference) * profile.weighed[place]
    error = profile.error * math.exp(min(profile.tilt * (profile.reference - epsilon), 700.0))
    found = math.exp(profile.log_scale + profile.factor) * (above + error) + profile.beyond
    return min(1.0, found, chernoff_delta(losses, epsilon))


def chernoff_delta(losses: Losses, epsilon: float) -> float:
    """Bound delta at epsilon in little time, where it may be several times too large (Canonne et al. 2020)."""
    nodes = _nodes_of(losses, _SMALLEST)

    def log_delta(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return _cumulants(nodes, tilt)[0] - tilt * epsilon + _log_peak(tilt)

    found = scipy.optimize.minimize_scalar(log_delta, bounds=(-8.0, 12.0), method="bounded")
    return math.exp(min(0.0, float(found.fun))) * (1 + 1e-6) + _infinite(losses) + _SMALLEST


def _chernoff_epsilon(losses: Losses, delta: float) -> float:
    left = delta - _infinite(losses) - _SMALLEST
    if left <= 0:
        return math.inf
    nodes = _nodes_of(losses, _SMALLEST)

    def epsilon(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (_cumulants(nodes, tilt)[0] - math.log(left) + _log_peak(tilt)) / tilt

    found = scipy.optimize.minimize_scalar(epsilon, bounds=(-8.0, 12.0), method="bounded")
    return max(0.0, float(found.fun) * (1 + 1e-6) + 1e-9)


def _log_peak(tilt: float) -> float:
    """The logarithm of the most that `exp(-tilt y) (1 - exp(-y))` can be."""
    return tilt * math.log(tilt) - (1 + tilt) * math.log1p(tilt)


def _infinite(losses: Losses) -> float:
    return -math.expm1(sum(count * math.log1p(-loss.infinite) for count, loss in losses))


def _total_variation(losses: Losses) -> float:
    """A bound on delta at epsilon 0: what each release has, added up."""
    total = sum(
        nodes.count * float(np.exp(nodes.log_mass) @ np.maximum(-np.expm1(-nodes.loss), 0.0))
        for nodes in _nodes_of(losses, _SMALLEST)
    )
    # The sum is of a function with a corner, so that it is only right to a part in a thousand.
    return total * 1.01 + _infinite(losses) + _SMALLEST


def _epsilon(losses: Losses, delta: float, finer: int, below: bool) -> float:
    left = delta - _infinite(losses)
    if left <= 0:
        return math.inf
    profile = _computed(losses, _window_for_delta(losses, left), finer, below)
    found = _solve(profile, delta, below)
    if profile.log_error(found) < math.log(_SMALL_ERROR * left):
        return found
    # The tilt did not move the bulk to epsilon, so that the error is large there.
    guess = found if 0 < found < math.inf else _chernoff_epsilon(losses, delta)
    again = _solve(_computed(losses, _window_for_epsilon(losses, guess, left), finer, below), delta, below)
    return max(found, again) if below else min(found, again)


def _computed(losses: Losses, window: _Window, finer: int, below: bool) -> _Profile:
    spacing = window.spacing / 2**finer
    points = 1 << max(_FEWEST.bit_length() - 1, math.ceil(math.log2((window.high - window.low) / spacing)))
    points = min(points, _MOST)
    spacing = (window.high - window.low) / (points - 2)
    parts = [(count, _on_grid(loss, spacing, window.tail, points, below)) for count, loss in losses]
    return _profile(parts, spacing, points, window, finer, below)


def _on_grid(loss: MixedLoss, spacing: float, tail: float, points: int, below: bool) -> GridMasses:
    offset = fitting_offset(loss, spacing) if below else 0.0
    cells = cells_of(loss, spacing, offset, tail, 2 * points)
    return cells.from_below() if below else cells.from_above()


def _nodes_of(losses: Losses, delta: float) -> list[_Nodes]:
    total = sum(count for count, _ in losses)
    return [_Nodes(count, *_masses_and_losses(loss, delta * _LEFT_OUT / total)) for count, loss in losses]


@functools.lru_cache(maxsize=8)
def _masses_and_losses(loss: MixedLoss, tail: float) -> tuple[np.ndarray, np.ndarray]:
    masses, at = [], []
    for weight, pair in loss.pairs:
        begin, end = pair.range(tail)
        step = 0.1 * pair.fineness
        u = np.arange(begin, end + step, step)
        masses.append(pair.log_density(u) + math.log(weight * step / math.sqrt(2 * math.pi)))
        at.append(pair.loss(u))
    for value, probability in loss.atoms:
        masses.append(np.array([math.log(max(probability, 1e-300))]))
        at.append(np.array([value]))
    return np.concatenate(masses), np.concatenate(at)


def _cumulants(nodes: Sequence[_Nodes], tilt: float) -> tuple[float, float, float]:
    """The logarithm of E[exp(tilt S)], and its first and second derivative."""
    total = mean = variance = 0.0
    for part in nodes:
        count, loss = part.count, part.loss
        exponents = part.log_mass + tilt * loss
        top = float(exponents.max())
        masses = np.exp(exponents - top)
        mass = float(masses.sum())
        first = float(masses @ loss) / mass
        total += count * (math.log(mass) + top)
        mean += count * first
        variance += count * float(masses @ np.square(loss - first)) / mass
    return total, mean, variance


def _log_delta(nodes: Sequence[_Nodes], tilt: float) -> float:
    """About the logarithm of delta at the epsilon whose best tilt this is (the saddle point's)."""
    total, mean, variance = _cumulants(nodes, tilt)
    return total - tilt * mean - math.log(max(1.0, math.sqrt(2 * math.pi * variance) * tilt * (1 + tilt)))


def _window_for_delta(losses: Losses, delta: float) -> _Window:
    nodes = _nodes_of(losses, delta)

    def far(tilt: float) -> bool:
        return _log_delta(nodes, tilt) <= math.log(delta)

    return _window(nodes, _least_tilt(far), delta)


def _window_for_epsilon(losses: Losses, epsilon: float, delta: float) -> _Window:
    nodes = _nodes_of(losses, delta)
    return _window(nodes, _least_tilt(lambda tilt: _cumulants(nodes, tilt)[1] >= epsilon), delta)


def _least_tilt(far: Callable[[float], bool]) -> float:
    """The least tilt, between two bounds, that moves the bulk far enough."""
    low, high = -10.0, 14.0
    for _ in range(26):
        middle = (low + high) / 2
        low, high = (low, middle) if far(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _window(nodes: Sequence[_Nodes], tilt: float, delta: float) -> _Window:
    releases = sum(part.count for part in nodes)
    total, epsilon, variance = _cumulants(nodes, tilt)
    changes = np.geomspace(0.25, 64.0, 17) / max(math.sqrt(variance), 1e-12)
    highs = [(_cumulants(nodes, tilt + change)[0] - total - _LOG_OUTSIDE) / change for change in changes]
    lows = [(_cumulants(nodes, tilt - change)[0] - total - _LOG_OUTSIDE) / change for change in changes]
    top, bottom = int(np.argmin(highs)), int(np.argmin(lows))
    most, least = highs[top], min(-lows[bottom], 0.0)
    # Rounding adds at most spacing^2 / 4 to a loss's variance, which moves epsilon by half of that times the tilt.
    spacing = math.sqrt(_ROUNDING * 8 * max(epsilon, 1e-6) / (releases * (tilt + 1)))
    spacing = min(spacing, (most - least) / _FEWEST)
    margin = 2 * spacing
    changed = float(changes[bottom]), float(changes[top])
    return _Window(tilt, least - margin, most + margin, *changed, spacing, delta * _LEFT_OUT / releases)


def _profile(
    parts: Sequence[tuple[int, GridMasses]], spacing: float, points: int, window: _Window, finer: int, below: bool
) -> _Profile:
    tilt = window.tilt
    spectrum = np.ones(points // 2 + 1, complex)
    log_size = np.zeros(points // 2 + 1)
    inexact = []
    log_total = log_below = log_above = log_finite = offset = 0.0
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
        tilted = grid.masses * np.exp(tilt * losses - log_sum)
        where = np.remainder(grid.first + np.arange(len(losses)), points)
        transformed, error = _transform(np.bincount(where, tilted, points), _HEAVIEST if finer else 0)
        size = np.abs(transformed) + error * math.sqrt(points)
        spectrum *= _power(transformed, count)
        log_size += count * np.log(size)
        inexact.append((count, error, size))
        offset += count * grid.offset
        log_finite += count * math.log1p(-grid.infinite)
    # The root of the sum of squares of all points' errors is that of frequencies, but for a factor (Parseval). What is
    # known of those of one transform is this root too, so that each of them may have all of it.
    product = np.exp(log_size) * (1 + 1e-6)
    spread = 8 * _UNIT * releases * math.sqrt(2 * float(np.mean(np.square(product))))
    for count, error, size in inexact:
        others = product / size
        spread += count * error * min(float(others.max()), math.sqrt(2 * float(np.sum(np.square(others)))))
    tilted = scipy.fft.irfft(spectrum, points)
    spread += 2 * _TRANSFORM_ERROR * math.log2(points) * _UNIT * math.sqrt(float(np.sum(np.square(tilted))))
    start = math.ceil((window.low - offset) / spacing)
    numbers = start + np.arange(points)
    tilted = np.maximum(tilted[np.remainder(numbers, points)], 0.0)
    sums = offset + spacing * numbers
    reference = float(np.clip(np.sum(tilted * sums), sums[0], sums[-1]))
    log_scale = log_total - tilt * reference
    kept = (sums > -spacing) & (sums > reference - 600 / max(tilt, 1.0))
    sums, tilted = sums[kept], tilted[kept]
    masses = tilted * np.exp(-tilt * (sums - reference))
    mass = np.cumsum(masses[::-1])[::-1]
    weighed = np.cumsum((masses * np.exp(reference - sums))[::-1])[::-1]
    outside_above = math.exp(min(0.0, log_above - log_total - window.high_tilt * (window.high - spacing)))
    outside_below = math.exp(min(0.0, log_below - log_total + window.low_tilt * (window.low + spacing)))
    # The root of the sum over points of (exp(-tilt y) (1 - exp(-y)))^2, y their distance to epsilon.
    peak = math.exp(_log_peak(tilt))
    beyond = -math.expm1(log_finite)
    error = spread * math.sqrt(1 / (2 * spacing * tilt * (2 * tilt + 1) * (tilt + 1)) + peak**2)
    if below:
        error += (outside_above + outside_below) * peak
    else:
        beyond += math.exp(min(0.0, log_total - tilt * window.high)) * outside_above
    factor = releases * MASS_ERROR * (1 + tilt * farthest * 1e-3) + points * 2 * _UNIT + 1e-9
    return _Profile(sums, mass, weighed, reference, log_scale, error, tilt, beyond, factor)


def _log_moment(masses: np.ndarray, losses: np.ndarray, tilt: float) -> float:
    exponents = tilt * losses
    top = float(exponents.max())
    # The top itself may have no mass at all, so that what is summed may be small, but not lost.
    with np.errstate(divide="ignore"):
        top = float(np.max(np.where(masses > 0, exponents + np.log(masses), -np.inf)))
    return top + math.log(float(np.sum(masses * np.exp(np.minimum(exponents - top, 700.0)))))


def _transform(masses: np.ndarray, heaviest: int) -> tuple[np.ndarray, float]:
    """Transform masses, some of them, the heaviest, one by one, which is more exact where they have most of the mass.

    Returns:
      The transform, complex128 [points / 2 + 1], and a bound on the root of the mean square of its errors.
    """
    points = len(masses)
    rest, transformed, error = masses, np.zeros(points // 2 + 1, complex), 0.0
    if heaviest:
        found = np.argpartition(masses, -heaviest)[-heaviest:]
        rest = masses.copy()
        rest[found] = 0.0
        roots = np.exp(-2j * math.pi / points * np.arange(points))
        frequencies = np.arange(points // 2 + 1)
        for place in found:
            transformed += masses[place] * roots[(frequencies * place) % points]
        error = (8 + heaviest) * _UNIT * float(np.sum(masses[found]))
    error += _TRANSFORM_ERROR * math.log2(points) * _UNIT * math.sqrt(float(np.sum(np.square(rest))))
    return transformed + scipy.fft.rfft(rest), error


def _power(values: np.ndarray, count: int) -> np.ndarray:
    result = None
    while count:
        if count & 1:
            result = values if result is None else result * values
        count >>= 1
        if count:
            values = values * values
    assert result is not None
    return result


def _solve(profile: _Profile, delta: float, below: bool) -> float:
    """Find where the bound on delta(epsilon) passes delta."""
    sums, mass, weighed, reference, log_scale, error, tilt, beyond, factor = profile
    sign = -1.0 if below else 1.0
    with np.errstate(over="ignore"):
        errors = sign * error * np.exp(np.minimum(tilt * (reference - sums), 700.0))
        at_points = mass - np.exp(np.minimum(sums - reference, 700.0)) * weighed + errors
    left = delta - beyond
    if left <= 0:
        return math.inf
    # In the scale of the masses.
    wanted = math.exp(min(math.log(left) - sign * factor - log_scale, 700.0))
    too_much = np.flatnonzero(at_points > wanted)
    if not len(too_much):
        return 0.0 if below else max(0.0, float(sums[0]))
    place = int(too_much[-1]) + 1
    if place == len(sums):
        return max(0.0, float(sums[-1])) if below else math.inf
    # Between two points the same losses lie above, and the error is no more than at the first.
    over = mass[place] + errors[place - 1] - wanted
    if over <= 0 or weighed[place] <= 0:
        return max(0.0, float(sums[place - 1]))
    between = float(reference + math.log(over / weighed[place]))
    return max(0.0, float(np.clip(between, sums[place - 1], sums[place])))
