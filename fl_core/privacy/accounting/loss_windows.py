"""Where sums of privacy losses are computed: tilt, window and spacing, and quick bounds by Chernoff's inequality.

All of it goes by weights at outcomes. Of windows they are close, but no bounds; what is computed in a window bounds its
own errors. Statements are those of `docs/design/accounting.md`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.loss_pairs import MixedLoss

Losses = Sequence[tuple[int, MixedLoss]]
"""How often each loss is added."""

LEFT_OUT = 1e-5
"""Part of delta that is cut off at the ends of single losses, and the most that sums without a jump may have."""
_LOG_OUTSIDE = math.log(1e-14)  # of the tilted mass, outside the window
_ROUNDING = 2e-4  # of epsilon, about what grids may add
OF_TAILS = 1e-12  # relative error of normal tails, and of what is made of them (statement 7)
_SMALLEST = 1e-40  # what quick bounds on delta leave out
_ONE_SUM = 1e-4  # the deviation of sums that are as good as one, over their mean
_LOG_TILTS = (-10.0, 14.0)  # between which tilts are found
_LOG_MOST = math.log(1e4)  # of the tilt times the largest loss, where that allows more
FEWEST_POINTS = 1 << 10
_STEEPEST = 4.0  # rise of the logarithm of tilted masses from the last node but one to the last (statement 20)
_NO_BOUND = 1e100
_LAST_PLACES = 1e-15  # of the two terms of an exponent (statement 20)
_LEAST_LEFT = 1e-6  # of all mass, below a cap
_LEAST_CAP, _NEXT_CAP = 1e-9, 0.6  # the latter of the cap before
_IN_A_GAP = 2e-3  # of delta, at most between a cap and the one before
_BETTER = 0.98  # of the quick bound before, for a lower cap to be worth it


@dataclass(frozen=True)
class _Nodes:
    """A loss as weights at outcomes.

    Attributes:
      count: how often it is added.
      log_mass: float64 [nodes].
      loss: float64 [nodes].
      ends: the last node of each pair.
      rounding: bound on the errors of `loss`, and those of `log_mass` that come from it.
    """

    count: int
    log_mass: np.ndarray
    loss: np.ndarray
    ends: tuple[int, ...] = ()
    rounding: float = 0.0

    def rises_to_an_end(self, tilt: float) -> bool:
        """Whether tilted masses rise so steeply to where losses are cut that their sum is no bound (statement 20)."""
        last = np.array(self.ends, dtype=int)
        steps = self.log_mass[last] - self.log_mass[last - 1] + tilt * (self.loss[last] - self.loss[last - 1])
        return bool(np.any(steps > _STEEPEST))


@dataclass(frozen=True)
class Window:
    """Where to compute.

    Attributes:
      tilt: lambda.
      low: of the sums, at most 0.
      high: of the sums.
      low_tilt: the change of tilt that bounds what lies below.
      high_tilt: the change of tilt that bounds what lies above.
      spacing: that makes the error small enough.
      tail: mass to cut off single losses.
      jump: sums are computed of which at least one loss is above this.
      rest_tilt: the tilt that bounds what the other sums add to delta.
    """

    tilt: float
    low: float
    high: float
    low_tilt: float
    high_tilt: float
    spacing: float
    tail: float
    jump: float = -math.inf
    rest_tilt: float = 1.0


def chernoff_delta(losses: Losses, epsilon: float) -> float:
    """Bound delta at epsilon in little time, where it may be several times too large (Canonne et al. 2020)."""
    log_delta = _least_over_tilts(losses, lambda tilt, log_moment: log_moment - tilt * epsilon * (1 - _LAST_PLACES))
    return math.exp(min(0.0, log_delta)) * (1 + 1e-6) + mass_above(losses, _SMALLEST)[0] * (1 + OF_TAILS) + _SMALLEST


def chernoff_epsilon(losses: Losses, delta: float) -> float:
    """Bound epsilon at delta in little time, where it may be several times too large."""
    left = delta - mass_above(losses, _SMALLEST)[0] * (1 + OF_TAILS) - _SMALLEST
    if left <= 0:
        return math.inf
    found = _least_over_tilts(losses, lambda tilt, log_moment: (log_moment - math.log(left)) / tilt)
    return max(0.0, found * (1 + 1e-6)) if found < _NO_BOUND else math.inf


def _least_over_tilts(losses: Losses, bound: Callable[[float, float], float]) -> float:
    """Find the least of bounds that are made of a tilt and of the logarithm of its moment, times the peak."""
    nodes = _nodes_of(losses, _SMALLEST)

    def of_tilt(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        if any(part.rises_to_an_end(tilt) for part in nodes):
            return _NO_BOUND
        total = _cumulants(nodes, tilt)[0]
        return bound(tilt, total + _error_of_moments(nodes, total, tilt) + log_peak(tilt))

    return float(scipy.optimize.minimize_scalar(of_tilt, bounds=_log_tilts(nodes), method="bounded").fun)


def _error_of_moments(nodes: Sequence[_Nodes], total: float, tilt: float) -> float:
    """Bound the error of the logarithm of moments (statement 20)."""
    return 1e-13 + _LAST_PLACES * abs(total) + sum(part.count * (1e-13 + (1 + tilt) * part.rounding) for part in nodes)


def log_peak(tilt: float) -> float:
    """The logarithm of the most that `exp(-tilt y) (1 - exp(-y))` can be."""
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)


def mass_above(losses: Losses, tail: float) -> tuple[float, float]:
    """The probability, under P and under Q, that some loss is above what is computed of it; see `MixedLoss.above`."""
    each = [(count, *loss.above(tail)) for count, loss in losses]
    if any(own >= 1 for _, own, _ in each):
        return 1.0, 1.0
    return (
        -math.expm1(sum(count * math.log1p(-own) for count, own, _ in each)),
        -math.expm1(sum(count * math.log1p(-other) for count, _, other in each)),
    )


def with_cap_for_delta(losses: Losses, delta: float) -> Losses:
    """Cap losses as suits epsilon at delta; see `_with_cap`."""
    return _with_cap(losses, lambda capped: chernoff_epsilon(capped, delta), lambda mass, _: delta - mass)


def with_cap_for_epsilon(losses: Losses, epsilon: float) -> Losses:
    """Cap losses as suits delta at epsilon; see `_with_cap`."""
    # Of what is above this cap, delta has all but a part of exp(-12).
    near: Losses = [(count, replace(loss, cap=epsilon + 12)) for count, loss in losses]
    if mass_above(near, 0.0)[0] >= 1 - _LEAST_LEFT:
        near = losses
    return _with_cap(near, lambda capped: chernoff_delta(capped, epsilon), lambda _, delta: delta)


def _with_cap(losses: Losses, quick: Callable[[Losses], float], delta_left: Callable[[float, float], float]) -> Losses:
    """Cap losses where that brings a quick bound down: where some are rare and far above the others.

    A tilt that suits the others would make such a loss weigh most. The bounds hold with any cap, and one where there
    are hardly any losses hardly changes them.
    """
    cap = max(float(part.loss.max()) for part in _nodes_of(losses, _SMALLEST))
    best, least, before = losses, quick(losses), 0.0
    while cap > _LEAST_CAP:
        cap *= _NEXT_CAP
        capped = [(count, replace(loss, cap=cap)) for count, loss in losses]
        mass = mass_above(capped, 0.0)[0]
        if mass >= 1 - _LEAST_LEFT or (found := quick(capped)) == math.inf:
            break
        if found < _BETTER * least and mass - before <= _IN_A_GAP * delta_left(mass, found):
            best, least = capped, found
        before = mass
    return best


def largest_sum(losses: Losses) -> float:
    """The largest sum that is computed, but for what quick bounds leave out."""
    return sum(part.count * float(part.loss.max()) for part in _nodes_of(losses, _SMALLEST))


def total_variation(losses: Losses) -> float:
    """A bound on delta at epsilon 0: what each release has, added up."""
    total = sum(
        nodes.count * float(np.exp(nodes.log_mass) @ -np.expm1(-np.maximum(nodes.loss, 0.0)))
        for nodes in _nodes_of(losses, _SMALLEST)
    )
    moved = sum(count * pair.rounding_near_zero for count, loss in losses for _, pair in loss.pairs)
    # The sum is of a function with a corner, so that it is only right to a part in a hundred (statement 21).
    return total * 1.01 + moved + mass_above(losses, _SMALLEST)[0] + _SMALLEST


def window_for_delta(losses: Losses, delta: float) -> Window:
    """Choose the window in which epsilon at delta is found."""
    nodes = _nodes_of(losses, delta)

    def far(tilt: float) -> bool:
        return _log_delta(nodes, tilt) <= math.log(delta)

    return _window(nodes, _least_tilt(far, nodes), delta)


def window_for_epsilon(losses: Losses, epsilon: float, delta: float) -> Window:
    """Choose the window in which delta at epsilon, which is about this, is found."""
    nodes = _nodes_of(losses, delta)
    return _window(nodes, _least_tilt(lambda tilt: _cumulants(nodes, tilt)[1] >= epsilon, nodes), delta)


def window_of_jumps(losses: Losses, epsilon: float, delta: float) -> Window | None:
    """Choose the window, and which losses are jumps, where only sums with a jump reach epsilon.

    Where most of the mass is close to 0, and what reaches epsilon does so by one loss or two, no tilt moves the one to
    the other. Without the sums that have no jump, errors are relative to what has one. None where there is no such
    jump.
    """
    nodes = _nodes_of(losses, delta)
    for jump in epsilon * np.geomspace(0.5, 1 / 64, 11):
        rest = [_Nodes(part.count, *(one[part.loss <= jump] for one in (part.log_mass, part.loss))) for part in nodes]
        if not all(len(part.loss) for part in rest):
            return None

        def log_rest(log_tilt: float, rest: list[_Nodes] = rest) -> float:
            tilt = math.exp(log_tilt)
            return _cumulants(rest, tilt)[0] - tilt * epsilon * 0.95 + log_peak(tilt)

        least = scipy.optimize.minimize_scalar(log_rest, bounds=_log_tilts(nodes), method="bounded")
        if least.fun > math.log(LEFT_OUT * delta):
            continue

        def log_jumps(log_tilt: float, rest: list[_Nodes] = rest) -> float:
            tilt = math.exp(log_tilt)
            return _log_moment_of_jumps(nodes, rest, tilt) - tilt * epsilon

        tilt = math.exp(scipy.optimize.minimize_scalar(log_jumps, bounds=_log_tilts(nodes), method="bounded").x)
        log_part = _log_moment_of_jumps(nodes, rest, tilt) - _cumulants(nodes, tilt)[0]
        rest_tilt = math.exp(least.x)
        found = _window(nodes, tilt, delta, epsilon, log_part=log_part, jump=float(jump), rest_tilt=rest_tilt)
        return found if math.isfinite(found.high - found.low) and found.spacing > 0 else None
    return None


def _log_moment_of_jumps(nodes: Sequence[_Nodes], rest: Sequence[_Nodes], tilt: float) -> float:
    """The logarithm of E[exp(tilt S)], where at least one loss is not in `rest`."""
    log_rest, more = _cumulants(rest, tilt)[0], 0.0
    for part, other in zip(nodes, rest, strict=True):
        jumps = part.loss > other.loss.max()
        if jumps.any():
            log_odds = _log_sum(part.log_mass[jumps] + tilt * part.loss[jumps])
            log_odds -= _log_sum(other.log_mass + tilt * other.loss)
            more += part.count * float(np.logaddexp(0, log_odds))
    return log_rest + (more if more > 30 else math.log(math.expm1(more))) if more > 0 else -math.inf


def _log_sum(exponents: np.ndarray) -> float:
    top = float(exponents.max())
    return top + math.log(float(np.exp(exponents - top).sum()))


def _nodes_of(losses: Losses, delta: float) -> list[_Nodes]:
    total = sum(count for count, _ in losses)
    return [_Nodes(count, *_masses_and_losses(loss, delta * LEFT_OUT / total)) for count, loss in losses]


@functools.lru_cache(maxsize=8)
def _masses_and_losses(loss: MixedLoss, tail: float) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], float]:
    masses, at, ends, rounding = [], [], [-1], 0.0
    for weight, pair in loss.pairs:
        begin, end = loss.range(pair, tail)
        step = 0.1 * pair.fineness
        # Not `arange` of floats, whose steps are the rounded difference of the first two.
        u = begin + step * np.arange(math.ceil((end - begin) / step) + 1)
        masses.append(pair.log_density(u) + math.log(weight * step / math.sqrt(2 * math.pi)))
        at.append(pair.loss(u))
        ends.append(ends[-1] + len(u))
        rounding = max(rounding, pair.rounding(float(u[0]), float(u[-1])))
    for value, probability in loss.atoms_below_cap:
        masses.append(np.array([math.log(max(probability, 1e-300))]))
        at.append(np.array([value]))
    return np.concatenate(masses), np.concatenate(at), tuple(ends[1:]), rounding


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


def _log_tilts(nodes: Sequence[_Nodes]) -> tuple[float, float]:
    largest = max(float(part.loss.max()) for part in nodes)
    return _LOG_TILTS[0], max(_LOG_TILTS[1], _LOG_MOST - math.log(max(largest, 1e-15)))


def _least_tilt(far: Callable[[float], bool], nodes: Sequence[_Nodes]) -> float:
    """The least tilt, between two bounds, that moves the bulk far enough, or leaves hardly more than one sum."""
    low, high = _log_tilts(nodes)
    for _ in range(27):
        middle = (low + high) / 2
        tilt = math.exp(middle)
        low, high = (low, middle) if far(tilt) or _is_one_sum(nodes, tilt) else (middle, high)
    return math.exp(high)


def _is_one_sum(nodes: Sequence[_Nodes], tilt: float) -> bool:
    _, mean, variance = _cumulants(nodes, tilt)
    return mean > 0 and math.sqrt(max(variance, 0.0)) < _ONE_SUM * mean


def _window(
    nodes: Sequence[_Nodes],
    tilt: float,
    delta: float,
    wanted: float = 0.0,
    *,
    log_part: float = 0.0,
    jump: float = -math.inf,
    rest_tilt: float = 1.0,
) -> Window:
    """Choose the window of a tilt; `log_part` of the tilted mass, around `wanted`, is looked at."""
    releases = sum(part.count for part in nodes)
    total, mean, variance = _cumulants(nodes, tilt)
    deviation = max(math.sqrt(variance), 1e-150)
    changes = np.geomspace(0.25 / max(deviation, wanted), 64.0 / deviation, 17 if not wanted else 33)
    log_outside = _LOG_OUTSIDE + log_part
    highs = [(_cumulants(nodes, tilt + change)[0] - total - log_outside) / change for change in changes]
    lows = [(_cumulants(nodes, tilt - change)[0] - total - log_outside) / change for change in changes]
    top, bottom = int(np.argmin(highs)), int(np.argmin(lows))
    most, least = max(highs[top], wanted, 0.0), min(-lows[bottom], 0.0)
    # Rounding adds at most spacing^2 / 4 to a loss's variance, which moves epsilon by half of that times the tilt.
    epsilon = max(wanted or mean, 1e-3 * (most - least))
    spacing = math.sqrt(_ROUNDING * 8 * epsilon / (releases * (tilt + 1)))
    spacing = min(spacing, (most - least) / FEWEST_POINTS)
    margin = 2 * spacing
    return Window(
        tilt,
        least - margin,
        most + margin,
        float(changes[bottom]),
        float(changes[top]),
        spacing,
        delta * LEFT_OUT / releases,
        jump,
        rest_tilt,
    )
