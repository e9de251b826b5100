"""What a run may say of its privacy: the only place that an epsilon of a run comes from.

A run's releases are made from its first parameters too. So the statement composes what these spent with what the run
spends itself. If that is unknown, or they were not private, the run promises nothing. What was counted in the text of
its people, as for a vocabulary, goes out with every model: the statement composes what that spent.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedlm.fl_core.privacy.mechanisms.interface import Generations
from fedlm.fl_core.privacy.origins.ancestry import (
    NOT_PRIVATE,
    REPEATABLE,
    TUNING_FIELD,
    Phase,
    as_records,
    settings_in,
)
from fedlm.fl_core.privacy.origins.publisher_claims import claims_as_json, not_private_with_claims, quoted_claims
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.promise.counts.counts import Counts
from fedlm.fl_core.privacy.promise.guarantee import Guarantee, account
from fedlm.fl_core.privacy.promise.noise_cohort import NoiseCohort
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.selection.private_selection import composed_bounds
from fedlm.fl_core.privacy.promise.selection.tuning_record import (
    Tuning,
    assumed_of_choice,
    choice_in_words,
    law_of,
    not_chosen,
    provisos_of_choice,
)
from fedlm.fl_core.privacy.promise.spending import (
    Spending,
    common_adjacency,
    events_together,
    rho_together,
    spent_before,
)
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger

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
    counts: Counts  # in the text of its people
    tuning: Tuning = None  # what the run was compared with
    noise_cohort: NoiseCohort | None = None  # that its noise was scaled for

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
            alone = of_noise.issuperset(self.not_private) and not self.ancestry and not self.counts.told
            would_be = "With secret noise it would be" if cohort is None else cohort.would_be
            return f"{said}. {would_be} {self.own.sentence()}; {self.counts.vocabulary.sentence()}" if alone else said
        composed = [_spending_words(phase) for phase in self.ancestry if phase.people == "same"]
        words = [self.total.sentence(), *choice_in_words(self.tuning), *(f"composed with {one}" for one in composed)]
        words += [f"assumed: {one}" for one in assumed(self.ancestry, self.tuning)]
        claims = [one.sentence(private=True) for one in quoted_claims(self.ancestry)]
        return "; ".join([*words, *self.counts.sentences(), *claims])

    def provisos(self) -> list[str]:
        """Name in short what its epsilon does not cover, or only by a user's word."""
        people = {phase.people for phase in self.ancestry}
        whose = {"public": "public text", "disjoint": "other people's text"}
        provisos = [f"assumed: first parameters of {words}" for kind, words in whose.items() if kind in people]
        return [*provisos, *provisos_of_choice(self.tuning), *self.counts.provisos()]

    def as_terms(self) -> dict[str, Any]:
        """Make what `fedlm account` shows of it: the fields of the guarantee, without an epsilon and with `not_private`
        where nothing is promised, those of `Counts.as_json`, `ancestry` and `publisher_claims`."""
        said = self.counts.as_json()
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
        `tuning`, what it was compared with; what was counted, see `Counts.as_json`; and of imported weights
        `publisher_claims`."""
        return {
            "privacy": self.sentence(),
            "privacy_guarantee": None if self.total is None else self.total.as_json(),
            "not_private_because": list(self.not_private),
            "ancestry": as_records(self.ancestry),
            TUNING_FIELD: self.tuning,
            **self.counts.as_json(),
            **claims_as_json(self.ancestry, self.total is not None),
        }


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
    tuning, data, origins = about.get(TUNING_FIELD), about.get("training_data_sha256"), Origins.of_record(about)
    ancestry, law = origins.ancestry, law_of(tuning)
    counts = Counts.of_run(origins, data, plan.unit)
    found = counts.events()
    secret &= settings_in(about).get("noise_seed") != "experiment"
    reasons = [*([] if secret else [REPEATABLE]), *([] if plan.noise_cohort is None else [plan.noise_cohort.reason])]
    before, lost = spent_before(plan, data, ancestry, law)
    reasons += [*lost, *not_chosen(tuning), *counts.not_private(delta)]
    if reasons:
        return Statement(own, None, tuple(reasons), ancestry, counts, tuning, plan.noise_cohort)
    said = [*assumed(ancestry, tuning), *counts.assumptions()]
    if not before and not found and law is None:
        total = dataclasses.replace(own, assumptions=(*own.assumptions, *said))
        return Statement(own, total, (), ancestry, counts, tuning)
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
    return Statement(own, total, (), ancestry, counts, tuning)


ONE_UNIT = "a person in the data of this run and of the runs behind its first parameters is one unit in each of them"


def _spending_words(phase: Phase) -> str:
    assert phase.plan is not None
    rounds = sum(end - first for first, end in phase.generations)
    plan = phase.plan
    released = (
        f"{rounds} releases of {plan['mechanism']} noise, multiplier {plan['noise_multiplier']:.6g}, of {phase.words}"
    )
    return ", ".join([released, *choice_in_words(phase.tuning)])


def assumed(ancestry: Sequence[Phase], tuning: Tuning = None) -> list[str]:
    """Say what has to hold that nothing enforces: a user's word on people, and that nobody chose among runs."""
    said = dict.fromkeys((phase.people, phase.words) for phase in ancestry if phase.people != "same")
    compared = [("this run", tuning), *((phase.words, phase.tuning) for phase in ancestry if phase.people == "same")]
    lines = [f"{_PEOPLE[people]} ({words})" for people, words in said]
    return [*lines, *(line for words, found in compared for line in assumed_of_choice(words, found))]
