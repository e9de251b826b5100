"""Epsilon of many releases together, whichever plans they were made under: one accountant over all of them."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from fedlm.fl_core.privacy.accounting import joint_convexity
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.distributed_noise import RenyiEvent, epsilon_with_slack
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import (
    gaussian_delta,
    gaussian_epsilon_above,
    gaussian_epsilon_below,
)
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import DIRECTIONS, Direction
from fedlm.fl_core.privacy.accounting.losses.loss_sums import lower_epsilon, upper_delta, upper_epsilon
from fedlm.fl_core.privacy.accounting.losses.quick_bounds import Losses, chernoff_delta
from fedlm.fl_core.privacy.accounting.merged_events import merged, neighbours, only_gaussian
from fedlm.fl_core.privacy.accounting.release_events import (
    Event,
    ExamplesEvent,
    GaussianEvent,
    Plain,
    Simulated,
    StatedEvent,
)
from fedlm.fl_core.privacy.accounting.sampled_examples import MOST_SHIFT

_WITHIN = 0.001
"""How far the two bounds on epsilon may be apart, of the upper, before finer grids are taken."""
_FINER = (0, 1, 3, 4, 6)  # doublings of the grids' points that are tried

LITTLE_NOISE = 0.02
"""Sampled releases with a multiplier below this have losses of thousands, which closed forms bound."""


class EpsilonBounds(NamedTuple):
    """Between which the epsilon of the events lies, were each of them the worst that its description allows.

    Attributes:
      upper: what may be promised.
      lower: below which no analysis of the same description can come.
    """

    upper: float
    lower: float


def epsilon_bounds(events: Sequence[Event], delta: float) -> EpsilonBounds:
    """Compose events, all about the same person, into one epsilon at delta, between bounds.

    The bounds are less than 1 % apart, but where a release has a noise multiplier below `LITTLE_NOISE`, beside sampled
    ones, so that closed forms are taken (unsampled ones together count as one); where a release gives everything away
    about as often as delta says; and where delta is so close to the total variation that epsilon is as good as 0, a
    small part of what the losses are.

    It holds under zero-out, and under add-or-remove where each of the events alone holds under it; later releases may
    depend on earlier ones in any way.

    Raises:
      ConfigurationError: delta, or a number of an event, is out of range.
      AccountingError: two bounds contradict each other, which is a defect of the accountant.
    """
    check_delta(delta)
    others, simulated = _apart(events)
    if simulated:
        below = epsilon_bounds([*others, *(GaussianEvent(*event.no_more()) for event in simulated)], delta).lower
        return not_crossed(EpsilonBounds(epsilon_of_others(events, delta), below), events, delta)
    found = [_checked_bounds(merged(case), delta) for case in neighbours(others)]
    return EpsilonBounds(*map(max, zip(*found, strict=True)))


def epsilon_above(events: Sequence[Event], delta: float) -> float:
    """Bound epsilon from above alone, in half the time; `epsilon_bounds` gives no more than this.

    Raises:
      ConfigurationError: delta, or a number of an event, is out of range.
    """
    check_delta(delta)
    return epsilon_of_others(events, delta)


def epsilon_of_others(events: Sequence[Event], delta: float) -> float:
    """Bound epsilon of a part of all events from above, at a part of delta, which may be less than may be asked for."""
    others, simulated = _apart(events)
    share = delta / max(len(simulated) + bool(others), 1)
    beside = max(_epsilon_above(merged(case), share) for case in neighbours(others)) if others else 0.0
    return beside + math.fsum(event.epsilon_above(share) for event in simulated)


def _apart(events: Sequence[Event]) -> tuple[list[Plain], list[Simulated]]:
    """Tell releases by Monte Carlo, whose epsilons are added, from others, which are composed; raises
    ConfigurationError where a number of the former is out of range."""
    simulated = [event for event in events if isinstance(event, Simulated)]
    for event in simulated:
        event.check()
    return [event for event in events if not isinstance(event, Simulated)], simulated


def delta_above(events: Sequence[Event], epsilon: float) -> float:
    """Bound delta at epsilon from above; that of releases by Monte Carlo as if it were known when a person takes part.

    Raises:
      ConfigurationError: a number of an event is out of range.
    """
    if epsilon < 0:
        # What one of the two data sets is to the other, the other is to it in the opposite direction.
        return -math.expm1(epsilon) + math.exp(epsilon) * delta_above(events, -epsilon)
    others, simulated = _apart(events)
    certain = [*others, *(GaussianEvent(*event.no_less()) for event in simulated)]
    return max(_delta_above(merged(case), epsilon) for case in neighbours(certain))


def _delta_above(events: tuple[Plain, ...], epsilon: float) -> float:
    if not events:
        return 0.0
    gaussian = only_gaussian(events)
    if gaussian is not None:
        return gaussian_delta(gaussian, epsilon) * (1 + 1e-9)
    if _has_divergences(events) or _has_little_noise(events):
        return _delta_by_search(events, epsilon)
    return max(upper_delta(_losses(events, direction), epsilon) for direction in DIRECTIONS)


@functools.lru_cache(maxsize=256)
def _epsilon_above(events: tuple[Plain, ...], delta: float) -> float:
    if not events:
        return 0.0
    gaussian = only_gaussian(events)
    if gaussian is not None:
        return gaussian_epsilon_above(gaussian, delta)
    if _has_divergences(events):
        return _epsilon_by_divergences(events, delta)
    if _has_little_noise(events):
        return _bounds_of_little_noise(events, delta).upper
    return upper_of_directions(_both_directions(events), delta)


class AccountingError(Exception):
    """The accountant contradicts itself, so that nothing it says is to be trusted. This is a defect of ours."""


def _checked_bounds(events: tuple[Plain, ...], delta: float) -> EpsilonBounds:
    """Bound epsilon, no lower than that of any of the events alone."""
    together = _epsilon_bounds(events, delta)
    if len(events) < 2:
        return together
    alone = [_epsilon_bounds((event,), delta) for event in events]
    for event, one in zip(events, alone, strict=True):
        if together.upper < one.lower:
            raise AccountingError(
                f"epsilon of {events} at delta {delta} is at most {together.upper}, but that of {event} alone is at "
                f"least {one.lower}"
            )
    return EpsilonBounds(*map(max, zip(together, *alone, strict=True)))


@functools.lru_cache(maxsize=256)
def _epsilon_bounds(events: tuple[Plain, ...], delta: float) -> EpsilonBounds:
    if not events:
        return EpsilonBounds(0.0, 0.0)
    if (gaussian := only_gaussian(events)) is not None:
        return EpsilonBounds(_epsilon_above(events, delta), gaussian_epsilon_below(gaussian, delta))
    if _has_divergences(events):
        return EpsilonBounds(_epsilon_above(events, delta), _epsilon_bounds(_without_divergences(events), delta).lower)
    if _has_little_noise(events):
        return not_crossed(_bounds_of_little_noise(events, delta), events, delta)
    bounds = bounds_of_directions(_both_directions(events), delta, _epsilon_above(events, delta))
    return not_crossed(bounds, events, delta)


def upper_of_directions(directions: Sequence[Losses], delta: float) -> float:
    """Bound epsilon from above whichever of the directions counts."""
    upper = 0.0
    for losses in directions:
        # Mostly one direction spends far less than the other.
        if not upper or chernoff_delta(losses, upper) > delta * 0.999:
            upper = max(upper, upper_epsilon(losses, delta))
    return upper


def bounds_of_directions(directions: Sequence[Losses], delta: float, upper: float) -> EpsilonBounds:
    """Bound epsilon from below too, and more closely from above, on finer grids while the bounds are far apart."""
    lower = 0.0
    for finer in _FINER:
        if finer:
            upper = min(upper, max(upper_epsilon(losses, delta, finer, near=upper) for losses in directions))
        for losses in directions:
            lower = max(lower, lower_epsilon(losses, delta, finer, near=upper))
            if lower >= upper * (1 - _WITHIN):
                return EpsilonBounds(upper, lower)
    return EpsilonBounds(upper, lower)


def not_crossed(bounds: EpsilonBounds, events: object, delta: float) -> EpsilonBounds:
    """Give the bounds back.

    Raises:
      AccountingError: the lower one is above the upper.
    """
    if bounds.lower > bounds.upper:
        raise AccountingError(
            f"epsilon of {events} at delta {delta} is at most {bounds.upper} and at least {bounds.lower}"
        )
    return bounds


def _has_little_noise(events: Sequence[Plain]) -> bool:
    return any(_has_little(event) for event in events)


def _has_little(event: Plain) -> bool:
    if isinstance(event, ExamplesEvent):
        return event.noise_multiplier * MOST_SHIFT < event.examples
    return isinstance(event, GaussianEvent) and event.noise_multiplier < LITTLE_NOISE


def _bounds_of_little_noise(events: Sequence[Plain], delta: float) -> EpsilonBounds:
    """Compose by closed forms; stated events by adding up."""
    stated = [event for event in events if isinstance(event, StatedEvent)]
    gaussian = [event.releases() for event in events if isinstance(event, GaussianEvent)]
    examples = [event for event in events if isinstance(event, ExamplesEvent)]
    left = delta - math.fsum(event.given_away for event in stated)
    lower = joint_convexity.lower_epsilon([*gaussian, *(event.no_more() for event in examples)], delta)
    if left <= 0:
        return EpsilonBounds(math.inf, lower)
    above = [*gaussian, *(event.no_less() for event in examples)]
    upper = joint_convexity.upper_epsilon(above, left) + math.fsum(event.count * event.epsilon for event in stated)
    return EpsilonBounds(upper, lower)


def _has_divergences(events: Sequence[Plain]) -> bool:
    return any(isinstance(event, RenyiEvent) for event in events)


def _without_divergences(events: Sequence[Plain]) -> tuple[GaussianEvent | ExamplesEvent | StatedEvent, ...]:
    return tuple(event for event in events if not isinstance(event, RenyiEvent))


def _epsilon_by_divergences(events: tuple[Plain, ...], delta: float) -> float:
    """Compose by Renyi divergences; what has none here is composed by itself, for half of delta, and added."""
    known = [event for event in events if isinstance(event, RenyiEvent)]
    more, others = 0.0, list[Plain]()
    for event in _without_divergences(events):
        if (gaussian := only_gaussian((event,))) is not None:
            more += 1 / (2 * gaussian**2)
        else:
            others.append(event)
    share = math.fsum(event.given_away for event in others if isinstance(event, StatedEvent))
    beside = 0.0
    if share < delta and any(not isinstance(event, StatedEvent) or event.epsilon for event in others):
        share += (delta - share) / 2
        beside = _epsilon_above(tuple(others), share)
    return beside + epsilon_with_slack(known, more, delta - share) if share < delta else math.inf


def _delta_by_search(events: tuple[Plain, ...], epsilon: float) -> float:
    low, high = math.log(1e-300), 0.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = _epsilon_above(events, math.exp(middle)) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def _both_directions(events: Sequence[Plain]) -> list[Losses]:
    found: list[Losses] = []
    for direction in DIRECTIONS:
        losses = _losses(events, direction)
        if losses not in found:
            found.append(losses)
    return found


def _losses(events: Sequence[Plain], direction: Direction) -> Losses:
    return [(event.count, event.loss(direction)) for event in _without_divergences(events)]
