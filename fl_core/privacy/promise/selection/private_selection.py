"""What choosing the best of a random number of private runs spends, composed with all else that is released.

A selection's Renyi divergences follow from those of one run by theorem 2 (truncated negative binomial) or theorem 6
(Poisson) of Papernot and Steinke (2022, "Hyperparameter tuning with Renyi differential privacy"), as the dp-accounting
library computes them.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.accounting_library import accounting_library
from fedlm.fl_core.privacy.accounting.composition import (
    EpsilonBounds,
    epsilon_above,
    epsilon_bounds,
    epsilon_of_others,
    not_crossed,
)
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.release_events import Event, GaussianEvent, StatedEvent
from fedlm.fl_core.privacy.mechanisms.interface import Mechanism
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_ORDERS = [1 + 0.1 * 1.1**step for step in range(45)] + sorted({round(8 * 1.09**step) for step in range(65)})
"""Of Renyi divergences; those of sampled noise take the longer the higher they are."""
_HIGH_ORDERS = [2200 * 1.1**step for step in range(65)]
_ROUNDING = 1e-6  # relative; of float64, of a distribution's mean, and of noise that began anew


def check_selected(mechanism: Mechanism) -> None:
    """Refuse, by a ConfigurationError, a trial of a private selection whose releases are not accounted."""
    if mechanism.distributed:
        raise ConfigurationError(
            f"a private selection among runs with the mechanism {mechanism.name} is not accounted; take a mechanism "
            "whose noise the server adds"
        )


@dataclass(frozen=True)
class SelectionEvent:
    """The best of a random number of equal trials, of which nothing else is released.

    Attributes:
      trial: what one of them releases, all of it Gaussian noise on sums that are whole or a Poisson sample, without
        truncation; the theorems take no other.
      law: of how many there are.
    """

    trial: tuple[Event, ...]
    law: TrialsLaw

    def __post_init__(self) -> None:
        if len(self.releases) < len(self.trial) or any(event.most is not None for event in self.releases):
            raise ConfigurationError(
                "a selection among runs with truncated rounds, with bins, with min-separation sampling, with sampled "
                "examples or with noise of clients is not accounted; take poisson sampling, and noise of the server"
            )

    @property
    def releases(self) -> list[GaussianEvent]:
        """What one trial releases, all of it as noise that the theorems take."""
        return [event for event in self.trial if isinstance(event, GaussianEvent)]


AnyEvent = Event | SelectionEvent


def composed_bounds(events: Sequence[AnyEvent], delta: float) -> EpsilonBounds:
    """Compose events, all about the same person, into one epsilon at delta, between bounds: `epsilon_bounds`, with
    selections among the events.

    Where there are any, the upper bound is that of the theorems, and the lower one that of selections whose scores are
    chance: each releases one trial, or, where it has none, nothing.

    Raises:
      ConfigurationError: delta, or a number of an event, is out of range.
    """
    plain, selections = _apart(events)
    if not selections:
        return epsilon_bounds(plain, delta)
    upper = composed_above(events, delta)
    some = math.prod(1 - float(next(selection.law.probabilities())) for selection in selections)
    released = [*plain, *(one for selection in selections for one in selection.trial)]
    lower = epsilon_bounds(released, delta / some).lower if delta < some else 0.0
    return not_crossed(EpsilonBounds(upper, lower), events, delta)


def composed_above(events: Sequence[AnyEvent], delta: float) -> float:
    """Bound epsilon from above alone; see `composed_bounds`.

    Raises:
      ConfigurationError: delta, or a number of an event, is out of range.
    """
    plain, selections = _apart(events)
    if not selections:
        return epsilon_above(plain, delta)
    check_delta(delta)
    for event in (*plain, *(one for selection in selections for one in selection.trial)):
        event.check()
    return _by_divergences(tuple(plain), tuple(selections), delta)


def _apart(events: Sequence[AnyEvent]) -> tuple[list[Event], list[SelectionEvent]]:
    """Tell selections from all others."""
    plain = [event for event in events if not isinstance(event, SelectionEvent)]
    return plain, [event for event in events if isinstance(event, SelectionEvent)]


@functools.lru_cache(maxsize=256)
def _by_divergences(plain: tuple[Event, ...], selections: tuple[SelectionEvent, ...], delta: float) -> float:
    """Bound epsilon by Renyi accounting; what has no divergence here is composed by itself and added."""
    dp_accounting = accounting_library()
    known = [event for event in plain if isinstance(event, GaussianEvent) and event.most is None]
    others = [event for event in plain if event not in known]
    share = math.fsum(event.given_away for event in others if isinstance(event, StatedEvent))
    beside = 0.0
    if any(not isinstance(event, StatedEvent) or event.epsilon for event in others) and share < delta:
        share += (delta - share) / 2
        beside = epsilon_of_others(others, share)
    if share >= delta:
        return math.inf
    gaussians = [*known, *(one for event in selections for one in event.releases)]
    sampled = any(event.sampling_probability < 1 for event in gaussians)
    accountant = dp_accounting.rdp.RdpAccountant(_ORDERS if sampled else _ORDERS + _HIGH_ORDERS)
    accountant.compose(_as_dp_event(known))
    for selection in selections:
        law, trial = selection.law, _as_dp_event(selection.releases)
        accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(trial, law.expected_trials, law.shape))
    return beside + (1 + _ROUNDING) * float(accountant.get_epsilon(delta - share))


def _as_dp_event(events: Sequence[GaussianEvent]) -> "DpEvent":
    """Describe releases as the library of accounting does."""
    dp_accounting = accounting_library()
    composed = []
    for event in events:
        one: DpEvent = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        if event.sampling_probability < 1:
            one = dp_accounting.PoissonSampledDpEvent(event.sampling_probability, one)
        composed.append(dp_accounting.SelfComposedDpEvent(one, event.count))
    return dp_accounting.ComposedDpEvent(composed)
