"""Where sums of privacy losses are computed: tilt, window and spacing.

All of it goes by weights at outcomes, which are close, but no bounds; what is computed in a window bounds its own
errors. Statements are those of `docs/design/accounting.md`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.losses.quick_bounds import (
    LEFT_OUT,
    Losses,
    Nodes,
    cumulants,
    log_peak,
    log_tilts,
    nodes_of,
)

_LOG_OUTSIDE = math.log(1e-14)  # of the tilted mass, outside the window
_ROUNDING = 2e-4  # of epsilon, about what grids may add
_ONE_SUM = 1e-4  # the deviation of sums that are as good as one, over their mean
FEWEST_POINTS = 1 << 10


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


def window_for_epsilon(losses: Losses, epsilon: float, delta: float) -> Window:
    """Choose the window around an epsilon, at which delta is about this."""
    nodes = nodes_of(losses, delta)
    return _window(nodes, _least_tilt(nodes, epsilon), delta)


def window_of_jumps(losses: Losses, epsilon: float, delta: float) -> Window | None:
    """Choose the window, and which losses are jumps, where only sums with a jump reach epsilon.

    Where most of the mass is close to 0, and what reaches epsilon does so by one loss or two, no tilt moves the one to
    the other. Without the sums that have no jump, errors are relative to what has one. None where there is no such
    jump.
    """
    nodes = nodes_of(losses, delta)
    for jump in epsilon * np.geomspace(0.5, 1 / 64, 11):
        rest = [Nodes(part.count, *(one[part.loss <= jump] for one in (part.log_mass, part.loss))) for part in nodes]
        if not all(len(part.loss) for part in rest):
            return None

        def log_rest(log_tilt: float, rest: list[Nodes] = rest) -> float:
            tilt = math.exp(log_tilt)
            return cumulants(rest, tilt)[0] - tilt * epsilon * 0.95 + log_peak(tilt)

        least = scipy.optimize.minimize_scalar(log_rest, bounds=log_tilts(nodes), method="bounded")
        if least.fun > math.log(LEFT_OUT * delta):
            continue

        def log_jumps(log_tilt: float, rest: list[Nodes] = rest) -> float:
            tilt = math.exp(log_tilt)
            return _log_moment_of_jumps(nodes, rest, tilt) - tilt * epsilon

        tilt = math.exp(scipy.optimize.minimize_scalar(log_jumps, bounds=log_tilts(nodes), method="bounded").x)
        log_part = _log_moment_of_jumps(nodes, rest, tilt) - cumulants(nodes, tilt)[0]
        rest_tilt = math.exp(least.x)
        found = _window(nodes, tilt, delta, epsilon, log_part=log_part, jump=float(jump), rest_tilt=rest_tilt)
        return found if math.isfinite(found.high - found.low) and found.spacing > 0 else None
    return None


def _log_moment_of_jumps(nodes: Sequence[Nodes], rest: Sequence[Nodes], tilt: float) -> float:
    """The logarithm of E[exp(tilt S)], where at least one loss is not in `rest`."""
    log_rest, more = cumulants(rest, tilt)[0], 0.0
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


def _least_tilt(nodes: Sequence[Nodes], epsilon: float) -> float:
    """The least tilt, between two bounds, that moves the bulk to epsilon, or leaves hardly more than one sum."""
    low, high = log_tilts(nodes)
    for _ in range(27):
        middle = (low + high) / 2
        _, mean, variance = cumulants(nodes, math.exp(middle))
        is_far = mean >= epsilon or math.sqrt(max(variance, 0.0)) < _ONE_SUM * mean
        low, high = (low, middle) if is_far else (middle, high)
    return math.exp(high)


def _window(
    nodes: Sequence[Nodes],
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
    total, mean, variance = cumulants(nodes, tilt)
    deviation = max(math.sqrt(variance), 1e-150)
    changes = np.geomspace(0.25 / max(deviation, wanted), 64.0 / deviation, 17 if not wanted else 33)
    log_outside = _LOG_OUTSIDE + log_part
    highs = [(cumulants(nodes, tilt + change)[0] - total - log_outside) / change for change in changes]
    lows = [(cumulants(nodes, tilt - change)[0] - total - log_outside) / change for change in changes]
    top, bottom = int(np.argmin(highs)), int(np.argmin(lows))
    most, least = max(highs[top], wanted, 0.0), min(-lows[bottom], 0.0)
    # Rounding adds at most spacing^2 / 4 to a loss's variance, which moves epsilon by half of that times the tilt.
    epsilon = max(wanted or mean, 1e-3 * (most - least))
    spacing = math.sqrt(_ROUNDING * 8 * epsilon / (releases * (tilt + 1)))
    spacing = min(spacing, (most - least) / FEWEST_POINTS)
    margin = 2 * spacing
    return Window(
        tilt=tilt,
        low=least - margin,
        high=most + margin,
        low_tilt=float(changes[bottom]),
        high_tilt=float(changes[top]),
        spacing=spacing,
        tail=delta * LEFT_OUT / releases,
        jump=jump,
        rest_tilt=rest_tilt,
    )
