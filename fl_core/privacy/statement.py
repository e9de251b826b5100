"""What a run may say of its privacy: the only place that an epsilon of a run comes from.

A run's releases are made from its first parameters too. So the statement composes what these spent with what the run
spends itself. If that is unknown, or they were not private, the run promises nothing. The vocabulary goes out with
every model: the statement composes what a private one spent, and names one that it does not cover. The relevances of
tokens, which correct a model's attention, go out too. With relevances that were counted without privacy a run promises
nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedlm.fl_core.privacy.mechanisms.interface import Generations
from fedlm.fl_core.privacy.origins.ancestry import (
    NOT_PRIVATE,
    REPEATABLE,
    TUNING_FIELD,
    Phase,
    as_records,
    data_of_people,
    recorded_ancestry,
    settings_in,
)
from fedlm.fl_core.privacy.origins.publisher_claims import claims_as_json, not_private_with_claims, quoted_claims
from fedlm.fl_core.privacy.origins.relevance_origin import RELEVANCE_FIELD, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, VocabularyOrigin
from fedlm.fl_core.privacy.promise.guarantee import Guarantee, account
from fedlm.fl_core.privacy.promise.noise_cohort import NoiseCohort
from fedlm.fl_core.privacy.promise.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.private_selection import composed_bounds
from fedlm.fl_core.privacy.promise.relevance_spending import not_hidden
from fedlm.fl_core.privacy.promise.spending import (
    Spending,
    common_adjacency,
    events_together,
    is_unchosen,
    law_of,
    least_covered,
    leaves_nothing,
    relevances_of,
    rho_together,
    spent_before,
    too_much_delta,
    vocabularies_of,
    words_and_tokens,
)
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger

_OF_SELECTION = (
    "only the operator knows how many runs {} was chosen from, and the scores and models of the others",
    "nobody looked at the data to fix the candidates; the runs that {} was chosen from were drawn from these",
    "the score of {} depends only on its released models and on other people's data; these people are the same whoever "
    "trains, and nothing is promised to them",
)
UNCHOSEN = "it is a trial that a private selection did not choose, and the selection covers only the chosen trial"
_PEOPLE = {
    "public": "the first parameters were made from public data alone",
    "disjoint": "the first parameters were made from data of other people, and nothing is promised to them here",
}


class Statement(NamedTuple):
    """What is said of a run, and why."""

    # of the run's own releases alone, as if its first parameters held nothing of anybody; with a noise cohort that of
    # the planned deployment
    own: Guarantee
    total: Guarantee | None  # what is promised; None where nothing is
    not_private: tuple[str, ...]  # why nothing is promised
    ancestry: tuple[Phase, ...]
    # the run's own, and others of what its first parameters went through, see `vocabularies_of`
    vocabularies: tuple[VocabularyOrigin, ...]
    tuning: Mapping[str, Any] | None = None  # what the run was compared with
    relevance: RelevanceOrigin | None = None  # that its attention is corrected by
    noise_cohort: NoiseCohort | None = None  # that its noise was scaled for

    @property
    def vocabulary(self) -> VocabularyOrigin:
        """Where its vocabulary comes from, and whether all of it is covered."""
        return least_covered(self.vocabularies)

    @property
    def noise_multiplier(self) -> float:
        """Of the noise that was added."""
        return self.own.noise_multiplier if self.noise_cohort is None else self.noise_cohort.scaled_multiplier

    def sentence(self) -> str:
        """Say it in one sentence."""
        if self.total is None:
            said = not_private_with_claims(f"{NOT_PRIVATE}: {'; '.join(self.not_private)}", self.ancestry)
            cohort = self.noise_cohort
            of_noise = {REPEATABLE, *([] if cohort is None else [cohort.reason])}
            counted = self.vocabulary.private is not None or self.relevance is not None
            alone = of_noise.issuperset(self.not_private) and not self.ancestry and not counted
            would_be = "With secret noise it would be" if cohort is None else cohort.would_be
            return f"{said}. {would_be} {self.own.sentence()}; {self.vocabulary.sentence()}" if alone else said
        composed = [_spending_words(phase) for phase in self.ancestry if phase.people == "same"]
        chosen = [_selection_words(law) for law in [law_of(self.tuning)] if law is not None]
        words = [self.total.sentence(), *chosen, *(f"composed with {one}" for one in composed)]
        words += [f"assumed: {one}" for one in assumed(self.ancestry, self.tuning)]
        claims = [one.sentence(private=True) for one in quoted_claims(self.ancestry)]
        relevance = [] if self.relevance is None else [self.relevance.sentence()]
        first, *behind = [one.sentence() for one in self.vocabularies]
        of_words = [first, *(f"for an earlier training of the parameters, {one}" for one in behind)]
        return "; ".join([*words, *of_words, *relevance, *claims])

    def provisos(self) -> list[str]:
        """Name in short what its epsilon does not cover, or only by a user's word."""
        people = {phase.people for phase in self.ancestry}
        whose = {"public": "public text", "disjoint": "other people's text"}
        provisos = [f"assumed: first parameters of {words}" for kind, words in whose.items() if kind in people]
        tuning = self.tuning or {}
        if "runs" in tuning:
            provisos.append(f"one of {tuning['runs']} private runs compared: choosing is not accounted")
        if "selection" in tuning:
            provisos.append("outcome of a private selection")
        if self.vocabulary.kind == "public":
            provisos.append("assumed: public vocabulary")
        if self.relevance is not None and self.relevance.kind == "public":
            provisos.append("assumed: public relevances of tokens")
        return provisos if self.vocabulary.covered else [*provisos, "VOCABULARY NOT COVERED"]

    def as_terms(self) -> dict[str, Any]:
        """Make what `fedlm account` shows of it: the fields of the guarantee, without an epsilon and with `not_private`
        where nothing is promised, `vocabulary_origin`, `relevance_origin`, `ancestry` and `publisher_claims`."""
        said: dict[str, Any] = self._origins_as_json()
        if self.ancestry:
            said["ancestry"] = as_records(self.ancestry)
        said |= claims_as_json(self.ancestry, self.total is not None)
        if self.total is not None:
            return self.total.as_json() | said
        fields = self.own.as_json()
        promises = {name: None for name in fields if name.startswith("epsilon") or name in ("rho", "sensitivity")}
        said |= {"noise_multiplier": self.noise_multiplier, "not_private": "; ".join(self.not_private)}
        return fields | promises | said

    def as_json(self) -> dict[str, Any]:
        """Make what a summary says of it: `privacy`, one sentence; `privacy_guarantee`, all of it, None where there is
        none; `not_private_because`, why; `ancestry`, what the first parameters went through;
        `tuning`, what it was compared with; `vocabulary_origin`, with `vocabularies` where there are several; with
        re-attention `relevance_origin`; and of imported weights `publisher_claims`."""
        return {
            "privacy": self.sentence(),
            "privacy_guarantee": None if self.total is None else self.total.as_json(),
            "not_private_because": list(self.not_private),
            "ancestry": as_records(self.ancestry),
            TUNING_FIELD: self.tuning,
            **self._origins_as_json(),
            **claims_as_json(self.ancestry, self.total is not None),
        }

    def _origins_as_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {ORIGIN_FIELD: self.vocabulary.as_json()}
        if len(self.vocabularies) > 1:
            said["vocabularies"] = [origin.as_json() for origin in self.vocabularies]
        return said if self.relevance is None else said | {RELEVANCE_FIELD: self.relevance.as_json()}


def state(ledger: PrivacyLedger, delta: float | None = None, secret: bool = True) -> Statement:
    """State what a run has spent, at its own delta where None; `secret` says whether nobody can compute its noise."""
    generations = [(first, end) for first, end in ledger.generations if end > first]
    return state_plan(
        ledger.plan, ledger.delta if delta is None else delta, ledger.about, generations=generations, secret=secret
    )


def state_plan(
    plan: PrivacyPlan,
    delta: float,
    about: dict[str, Any],
    *,
    generations: Generations | None = None,
    secret: bool = True,
) -> Statement:
    """State what rounds of a plan spend, or all that are planned, of a run that `about` describes as its ledger does.

    Raises:
      ConfigurationError: delta is not a probability.
    """
    own = account(plan.as_planned(), delta, generations)
    ancestry, tuning = recorded_ancestry(about), about.get(TUNING_FIELD)
    data = about.get("training_data_sha256")
    origin = VocabularyOrigin.from_json(about.get(ORIGIN_FIELD))
    vocabularies = vocabularies_of(origin, ancestry, data, plan.unit)
    relevance = RelevanceOrigin.from_json(about.get(RELEVANCE_FIELD))
    relevance = None if relevance is None else relevance.seen_from(data_of_people(ancestry, data))
    relevances = relevances_of(ancestry, relevance)
    found = words_and_tokens(vocabularies, relevances, plan.unit)
    secret &= settings_in(about).get("noise_seed") != "experiment"
    reasons = [*([] if secret else [REPEATABLE]), *([] if plan.noise_cohort is None else [plan.noise_cohort.reason])]
    law = law_of(tuning)
    before, lost = spent_before(plan, data, ancestry, law)
    reasons += lost
    if tuning is not None and is_unchosen(tuning):
        reasons.append(UNCHOSEN)
    if leaves_nothing(found, delta):
        reasons.append(too_much_delta(vocabularies, delta))
    if relevance is not None and relevance.not_private is not None:
        reasons.append(relevance.not_private)
    reasons += not_hidden(relevances, plan.unit)
    if reasons:
        return Statement(own, None, tuple(reasons), ancestry, vocabularies, tuning, relevance, plan.noise_cohort)
    said = [*assumed(ancestry, tuning), *assumed_of(vocabularies, relevances)]
    if not before and not found and law is None:
        total = dataclasses.replace(own, assumptions=(*own.assumptions, *said))
        return Statement(own, total, (), ancestry, vocabularies, tuning, relevance)
    spent = [*before, Spending(plan, [(0, plan.rounds)] if generations is None else generations, law)]
    adjacency = common_adjacency([one.plan for one in spent])
    as_stated = dataclasses.replace(plan, adjacency=adjacency)
    theirs = [line for one in before for line in account(one.plan, delta, one.rounds).assumptions]
    epsilon, lower = composed_bounds([*events_together(spent), *found], delta)
    total = dataclasses.replace(
        own,
        epsilon=epsilon,
        epsilon_lower=lower,
        rho=None if found else rho_together(spent),
        sensitivity=None,
        epsilon_by_rdp=None,
        against_server=None,
        adjacency=account(as_stated, delta, []).adjacency,
        assumptions=tuple(dict.fromkeys([*own.assumptions, *theirs, *([ONE_UNIT] if before else []), *said])),
    )
    return Statement(own, total, (), ancestry, vocabularies, tuning, relevance)


ONE_UNIT = "a person in the data of this run and of the runs behind its first parameters is one unit in each of them"


def _spending_words(phase: Phase) -> str:
    assert phase.plan is not None
    rounds = sum(end - first for first, end in phase.generations)
    plan = phase.plan
    law = law_of(phase.tuning)
    return (
        f"{rounds} releases of {plan['mechanism']} noise, multiplier {plan['noise_multiplier']:.6g}, of {phase.words}"
        f"{'' if law is None else ', ' + _selection_words(law)}"
    )


def assumed(ancestry: Sequence[Phase], tuning: Mapping[str, Any] | None = None) -> list[str]:
    """Say what has to hold that nothing enforces: a user's word on people, and that nobody chose among runs."""
    said = dict.fromkeys((phase.people, phase.words) for phase in ancestry if phase.people != "same")
    compared = [("this run", tuning), *((phase.words, phase.tuning) for phase in ancestry if phase.people == "same")]
    lines = [f"{_PEOPLE[people]} ({words})" for people, words in said]
    for words, found in compared:
        if found is None:
            continue
        if law_of(found) is not None:
            lines += [line.format(words) for line in _OF_SELECTION]
        else:
            lines.append(
                f"nobody chose {words} by looking at the others among the {found['runs']} or more private runs of its "
                "comparison; such a choice is not accounted for"
            )
    return lines


def assumed_of(vocabularies: Sequence[VocabularyOrigin], relevances: Sequence[RelevanceOrigin]) -> list[str]:
    """Say what has to hold of vocabularies whose spending is counted, and of the relevances of tokens."""
    counted = (*(origin.assumptions for origin in vocabularies), *(origin.assumptions for origin in relevances))
    return [line for assumptions in counted for line in assumptions]


def _selection_words(law: TrialsLaw) -> str:
    return f"the best of several such runs, whose number was drawn from a {law.words()}"
