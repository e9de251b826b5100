"""Quick bounds on sums of privacy losses, by Chernoff's inequality, from weights at outcomes.

Bounds hold; what `nodes_of` and `cumulants` say besides is close, and serves to choose where sums are computed.
Statements are those of `docs/design/accounting.md`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.losses.loss_pairs import MixedLoss

Losses = Sequence[tuple[int, MixedLoss]]
"""How often each loss is added."""

LEFT_OUT = 1e-5
"""Part of delta that is cut off at the ends of single losses, and the most that sums without a jump may have."""
OF_TAILS = 1e-12  # relative error of normal tails, and of what is made of them (statement 7)
_SMALLEST = 1e-40  # what quick bounds on delta leave out
_LOG_TILTS = (-10.0, 14.0)  # between which tilts are found
_LOG_MOST = math.log(1e4)  # of the tilt times the largest loss, where that allows more
_STEEPEST = 4.0  # rise of the logarithm of tilted masses from the last node but one to the last (statement 20)
_NO_BOUND = 1e100
_LAST_PLACES = 1e-15  # of the two terms of an exponent (statement 20)
_LEAST_LEFT = 1e-6  # of all mass, below a cap
_LEAST_CAP, _NEXT_CAP = 1e-9, 0.6  # the latter of the cap before
_IN_A_GAP = 2e-3  # of delta, at most between a cap and the one before
_BETTER = 0.98  # of the quick bound before, for a lower cap to be worth it


@dataclass(frozen=True)
class Nodes:
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
    nodes = nodes_of(losses, _SMALLEST)

    def of_tilt(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        if any(part.rises_to_an_end(tilt) for part in nodes):
            return _NO_BOUND
        total = cumulants(nodes, tilt)[0]
        return bound(tilt, total + _error_of_moments(nodes, total, tilt) + log_peak(tilt))

    return float(scipy.optimize.minimize_scalar(of_tilt, bounds=log_tilts(nodes), method="bounded").fun)


def _error_of_moments(nodes: Sequence[Nodes], total: float, tilt: float) -> float:
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
    cap = max(float(part.loss.max()) for part in nodes_of(losses, _SMALLEST))
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
    return sum(part.count * float(part.loss.max()) for part in nodes_of(losses, _SMALLEST))


def total_variation(losses: Losses) -> float:
    """A bound on delta at epsilon 0: what each release has, added up (statement 21)."""
    return math.fsum(count * loss.total_variation for count, loss in losses) * (1 + OF_TAILS)


def nodes_of(losses: Losses, delta: float) -> list[Nodes]:
    """Describe losses as weights at outcomes, but for a small part of delta."""
    total = sum(count for count, _ in losses)
    return [Nodes(count, *_masses_and_losses(loss, delta * LEFT_OUT / total)) for count, loss in losses]


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


def cumulants(nodes: Sequence[Nodes], tilt: float) -> tuple[float, float, float]:
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


def log_tilts(nodes: Sequence[Nodes]) -> tuple[float, float]:
    """Say between which logarithms a tilt is sought."""
    largest = max(float(part.loss.max()) for part in nodes)
    return _LOG_TILTS[0], max(_LOG_TILTS[1], _LOG_MOST - math.log(max(largest, 1e-15)))
