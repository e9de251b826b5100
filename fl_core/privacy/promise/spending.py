"""What trainings on the same people spend together, with what was counted in their text, and the noise that keeps it
within a target."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.accounting.release_events import Event
from fedlm.fl_core.privacy.mechanisms.interface import Generations
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.promise.counts.counts import Counts
from fedlm.fl_core.privacy.promise.guarantee import calibrate, events_of, least_noise, sensitivity_squared
from fedlm.fl_core.privacy.promise.plan import ONE_DOCUMENT, Adjacency, PrivacyPlan
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.selection.private_selection import (
    AnyEvent,
    SelectionEvent,
    check_selected,
    composed_above,
)
from fedlm.fl_core.privacy.promise.selection.tuning_record import law_of, may_be_scorers


class Spending(NamedTuple):
    """What a training spends."""

    plan: PrivacyPlan
    rounds: Generations  # of the plan that have run
    law: TrialsLaw | None = None  # of the number of trials that it was chosen from, each of the whole plan

    def events(self) -> list[AnyEvent]:
        """Describe what it releases."""
        if self.law is None:
            return list(events_of(self.plan, self.rounds))
        check_selected(MECHANISMS[self.plan.mechanism])
        return [SelectionEvent(tuple(events_of(self.plan)), self.law)]


def spent_before(
    plan: PrivacyPlan, training_data: str | None, ancestry: Sequence[Phase], law: TrialsLaw | None = None
) -> tuple[list[Spending], list[str]]:
    """Collect what the people of a run, which was chosen by `law` or not, have spent before it, and why that is not
    known."""
    spent: list[Spending] = []
    reasons = may_be_scorers(training_data, ancestry, law)
    for phase in ancestry:
        if phase.people != "same":
            continue
        earlier = None if phase.plan is None else PrivacyPlan.from_json(phase.plan)
        why = phase.not_private
        if why is None and earlier is not None and earlier.noise_cohort is not None:
            why = earlier.noise_cohort.reason
        if why is not None or earlier is None:
            reasons.append(
                f"the first parameters come from {phase.words}, which may have used data of the same people and "
                f"promises nothing ({why})"
            )
            continue
        if not _same_units(plan.unit, earlier.unit, training_data, phase.training_data_sha256):
            reasons.append(
                f"the first parameters come from {phase.words}, whose unit is another ({earlier.unit}; here: "
                f"{plan.unit}): the two do not add up to a promise to anybody"
            )
            continue
        rounds = [(first, end) for first, end in phase.generations if end > first]
        spent.append(Spending(earlier, rounds, law_of(phase.tuning)))
    return [one for one in spent if one.rounds], reasons


def _same_units(one: str, other: str, data: str | None, other_data: str | None) -> bool:
    """Say whether what one plan hides is what another hides: all of a person's text, or the same part of the same
    text."""
    people = {"client", "user"}
    nouns = {"document" if unit.startswith(ONE_DOCUMENT) else unit.split(":")[0] for unit in (one, other)}
    if nouns <= people:
        return True
    # A document of a data set without users is one of its clients.
    alike = one == other or nouns <= people | {"document"}
    return alike and data is not None and data == other_data


def _composed_epsilon(spent: Sequence[Spending], delta: float, counts: Sequence[Event]) -> float:
    return composed_above([*events_together(spent), *counts], delta)


def events_together(spent: Sequence[Spending]) -> list[AnyEvent]:
    """Describe what several trainings release."""
    return [event for one in spent for event in one.events()]


def rho_together(spent: Sequence[Spending]) -> float | None:
    """Add up the rho of trainings; None where one was sampled or chosen, or had noise of clients."""
    sampled = any(one.plan.participation.sampled for one in spent)
    distributed = any(MECHANISMS[one.plan.mechanism].distributed for one in spent)
    if sampled or distributed or any(one.law is not None for one in spent):
        return None
    return sum(sensitivity_squared(one.plan, one.rounds) / (2 * one.plan.noise_multiplier**2) for one in spent)


def common_adjacency(plans: Sequence[PrivacyPlan]) -> Adjacency:
    """Name the adjacency that all plans have a guarantee for: that of all, or zero-out, by which a sampled unit
    contributes nothing and everything else stays."""
    return "add_or_remove" if {plan.adjacency for plan in plans} == {"add_or_remove"} else "zero_out"


def calibrate_total(
    with_noise: Callable[[float], PrivacyPlan],
    delta: float,
    *,
    epsilon: float | None,
    rho: float | None,
    training_data: str | None = None,
    origins: Origins = Origins(),  # noqa: B008
    known: PrivacyPlan | None = None,
    law: TrialsLaw | None = None,
) -> PrivacyPlan:
    """Find the least noise with which a run, all that its first parameters went through, and what was counted in the
    text of its people reach a target together.

    Where nothing can be promised of the first parameters the target is the run's own. `known` is the plan of the run
    that goes on, whose noise stays as it is, however accounting has changed since. `law` is that of the number of
    trials that the run is to be chosen from, whose choice the target includes.

    Raises:
      ConfigurationError: the target is spent already, or `calibrate` refuses it.
    """
    if known is not None and with_noise(known.noise_multiplier) == known:
        return known
    # Which unit is hidden does not depend on the noise.
    loudest = with_noise(1.0)
    before, reasons = spent_before(loudest, training_data, origins.ancestry, law)
    counts = Counts.of_run(origins, training_data, loudest.unit)
    found = counts.events()
    if reasons or counts.not_hidden() or not (before or found or law):
        return calibrate(with_noise, delta, epsilon, rho)
    if too_much := counts.too_much_delta(delta):
        raise ConfigurationError(too_much[0])
    if rho is not None:
        if law is not None:
            raise ConfigurationError(
                f"{setting('target_rho')}: rho cannot express a private selection; give {setting('target_epsilon')}"
            )
        if found:
            raise ConfigurationError(
                f"{setting('target_rho')}: the vocabulary, or the relevances of its tokens, were made with (epsilon, "
                f"delta)-differential privacy, which rho does not express; give {setting('target_epsilon')}"
            )
        spent = rho_together(before)
        if spent is None:
            raise ConfigurationError(
                f"{setting('target_rho')}: the first parameters come from a run with Poisson sampling, of a private "
                f"selection, or with noise of clients, whose privacy rho does not express; give "
                f"{setting('target_epsilon')}"
            )
        _check_left("rho", spent, rho)
        return calibrate(with_noise, delta, None, rho - spent)
    assert epsilon is not None
    _check_left("epsilon", _composed_epsilon(before, delta, found), epsilon)

    def total(noise: float) -> float:
        plan = with_noise(noise)
        return _composed_epsilon([*before, Spending(plan, [(0, plan.rounds)], law)], delta, found)

    return with_noise(least_noise(total, epsilon))


def _check_left(what: str, spent: float, target: float) -> None:
    if not spent < target:
        raise ConfigurationError(
            f"the target {what} for everything together is {target:g}, but {rounded_up(spent)} is spent already, by "
            "the vocabulary, the relevances of tokens and the first parameters of the run; ask for more, or begin "
            "with others"
        )
