"""What trainings on the same people spend together, with what their vocabulary and the relevances of its tokens have
spent, and the noise that keeps it within a target."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.accounting.release_events import Event, StatedEvent
from fedlm.fl_core.privacy.mechanisms.interface import Generations, Mechanism
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.ancestry import Phase, data_of_people, on_other_data
from fedlm.fl_core.privacy.origins.relevance_origin import RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import UNKNOWN, VocabularyOrigin
from fedlm.fl_core.privacy.promise.guarantee import calibrate, events_of, least_noise, sensitivity_squared
from fedlm.fl_core.privacy.promise.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.plan import ONE_DOCUMENT, Adjacency, PrivacyPlan
from fedlm.fl_core.privacy.promise.private_selection import AnyEvent, SelectionEvent, composed_above
from fedlm.fl_core.privacy.promise.relevance_spending import not_hidden, relevance_events
from fedlm.fl_core.privacy.promise.vocabulary_spending import vocabulary_events


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


def check_selected(mechanism: Mechanism) -> None:
    """Refuse, by a ConfigurationError, a trial of a private selection whose releases are not accounted."""
    if mechanism.distributed:
        raise ConfigurationError(
            f"a private selection among runs with the mechanism {mechanism.name} is not accounted; take a mechanism "
            "whose noise the server adds"
        )


def law_of(tuning: Mapping[str, Any] | None) -> TrialsLaw | None:
    """Read the distribution of the number of trials; None of a run that is no trial of a private selection."""
    selection = (tuning or {}).get("selection")
    if selection is None:
        return None
    return TrialsLaw(selection["distribution"], selection["expected_trials"], selection["eta"])


def is_unchosen(tuning: Mapping[str, Any]) -> bool:
    """Say whether a run is a trial of a private selection that was not chosen."""
    return law_of(tuning) is not None and not tuning.get("chosen")


def spent_before(
    plan: PrivacyPlan, training_data: str | None, ancestry: Sequence[Phase], law: TrialsLaw | None = None
) -> tuple[list[Spending], list[str]]:
    """Collect what the people of a run, which was chosen by `law` or not, have spent before it, and why that is not
    known."""
    spent: list[Spending] = []
    reasons = _may_be_scorers(training_data, ancestry, law)
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


def _may_be_scorers(training_data: str | None, ancestry: Sequence[Phase], law: TrialsLaw | None) -> list[str]:
    """Say which outcomes of private selections were chosen by text of people who may be among those of another
    training: no noise hides what these wrote for the choice."""
    others = dict.fromkeys(phase.words for phase in on_other_data(ancestry, training_data))
    chosen = [phase.words for phase in ancestry if phase.people == "same" and law_of(phase.tuning) is not None]
    return [
        f"data of held-out people decided the choice of {words}, and the same people may be in another data set, which "
        f"{' and '.join(others)} trained on"
        for words in dict.fromkeys([*([] if law is None else ["this run"]), *chosen])
        if others
    ]


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


def composed_epsilon(spent: Sequence[Spending], delta: float, counts: Sequence[Event] = ()) -> float:
    """Compute epsilon at delta of all releases of several plans about the same people, and of counts in their text:
    their vocabulary, and the relevances of its tokens."""
    return composed_above([*events_together(spent), *counts], delta)


def vocabularies_of(
    own: VocabularyOrigin | None, ancestry: Sequence[Phase], training_data: str | None, unit: str
) -> tuple[VocabularyOrigin, ...]:
    """List where the vocabularies come from of a run, and of what its first parameters went through, each release of
    noise once; the run's own first, where it is given.

    The tokenizers of all these are equal where one run begins with another, but what made one may have been another
    release, about the same people, than what made the next. Of other people's trainings those count whose vocabulary
    was taken from another data set, of which nobody has said whose text it is.
    """
    people = data_of_people(ancestry, training_data)
    behind = [
        origin
        for phase in ancestry
        for origin in [VocabularyOrigin.from_json(phase.vocabulary)]
        if phase.people == "same" or origin.of_another
    ]
    found: dict[Any, VocabularyOrigin] = {}
    for origin in behind if own is None else [own, *behind]:
        seen = origin.seen_from(people).stated_for(unit)
        key = seen if seen.private is None else (seen.release, seen.private)
        # Of two records of one release what covers less, or costs more, holds for both.
        found[key] = min(found.get(key, seen), seen, key=lambda one: (one.covered, not one.of_another))
    return tuple(found.values())


def least_covered(vocabularies: Sequence[VocabularyOrigin]) -> VocabularyOrigin:
    """Choose what is said of several equal vocabularies: a guarantee covers them only if it covers each of them."""
    return min(vocabularies, key=lambda one: one.covered)


def words_and_tokens(
    vocabularies: Sequence[VocabularyOrigin], relevances: Sequence[RelevanceOrigin], unit: str
) -> list[Event]:
    """Describe what vocabularies, and counts of the relevances of their tokens, release about a unit of privacy."""
    of_words = [event for origin in vocabularies for event in vocabulary_events(origin, unit)]
    return [*of_words, *relevance_events(relevances, unit)]


def relevances_of(ancestry: Sequence[Phase], own: RelevanceOrigin | None = None) -> tuple[RelevanceOrigin, ...]:
    """List where the relevances come from that a run, and what its first parameters went through, learned of its
    people, each once."""
    behind = [RelevanceOrigin.from_json(phase.relevance) for phase in ancestry if phase.people == "same"]
    return tuple({(one.sha256, one.private): one for one in [own, *behind] if one is not None}.values())


def events_together(spent: Sequence[Spending]) -> list[AnyEvent]:
    """Describe what several trainings release."""
    return [event for one in spent for event in one.events()]


def leaves_nothing(vocabulary: Sequence[Event], delta: float) -> bool:
    """Say whether the chance that a vocabulary gives its people away is as large as delta."""
    return math.fsum(event.delta * event.count for event in vocabulary if isinstance(event, StatedEvent)) >= delta


def rho_together(spent: Sequence[Spending]) -> float | None:
    """Add up the rho of trainings; None where one was sampled or chosen, or had noise of clients."""
    distributed = any(MECHANISMS[one.plan.mechanism].distributed for one in spent)
    if distributed or _any_sampled(spent) or any(one.law is not None for one in spent):
        return None
    return sum(sensitivity_squared(one.plan, one.rounds) / (2 * one.plan.noise_multiplier**2) for one in spent)


def common_adjacency(plans: Sequence[PrivacyPlan]) -> Adjacency:
    """Name the adjacency that all plans have a guarantee for: that of all, or zero-out, by which a sampled unit
    contributes nothing and everything else stays."""
    return "add_or_remove" if {plan.adjacency for plan in plans} == {"add_or_remove"} else "zero_out"


def _any_sampled(spent: Sequence[Spending]) -> bool:
    return any(one.plan.participation.sampled for one in spent)


def calibrate_total(
    with_noise: Callable[[float], PrivacyPlan],
    delta: float,
    *,
    epsilon: float | None,
    rho: float | None,
    training_data: str | None = None,
    ancestry: Sequence[Phase] = (),
    known: PrivacyPlan | None = None,
    vocabulary: VocabularyOrigin = UNKNOWN,
    law: TrialsLaw | None = None,
    relevance: RelevanceOrigin | None = None,
) -> PrivacyPlan:
    """Find the least noise with which a run, all that its first parameters went through, its vocabulary, and the
    relevances that its attention is corrected by reach a target together.

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
    before, reasons = spent_before(loudest, training_data, ancestry, law)
    relevances = relevances_of(ancestry, relevance)
    reasons += not_hidden(relevances, loudest.unit)
    vocabularies = vocabularies_of(vocabulary, ancestry, training_data, loudest.unit)
    found = words_and_tokens(vocabularies, relevances, loudest.unit)
    if reasons or not (before or found or law):
        return calibrate(with_noise, delta, epsilon, rho)
    if leaves_nothing(found, delta):
        raise ConfigurationError(too_much_delta(vocabularies, delta))
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
    _check_left("epsilon", composed_epsilon(before, delta, found), epsilon)

    def total(noise: float) -> float:
        plan = with_noise(noise)
        return composed_epsilon([*before, Spending(plan, [(0, plan.rounds)], law)], delta, found)

    return with_noise(least_noise(total, epsilon))


def _check_left(what: str, spent: float, target: float) -> None:
    if not spent < target:
        raise ConfigurationError(
            f"the target {what} for everything together is {target:g}, but {rounded_up(spent)} is spent already, by "
            "the vocabulary, the relevances of tokens and the first parameters of the run; ask for more, or begin "
            "with others"
        )


def too_much_delta(vocabularies: Sequence[VocabularyOrigin], delta: float) -> str:
    """Say that private vocabularies leave nothing of delta."""
    spent = math.fsum(one.private.delta for one in vocabularies if one.private is not None and one.covered)
    return (
        f"the vocabulary has spent delta {rounded_up(spent)}, and the run's delta is {delta:g}, which leaves nothing "
        "for the run; ask for a larger delta, or import the data again with a smaller delta for the vocabulary"
    )
