"""What several runs have spent together, and all that their first parameters went through."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.origins.ancestry import (
    TUNING_FIELD,
    Phase,
    as_records,
    command_of,
    recorded_ancestry,
    seen_from,
    settings_in,
    with_all_doubts,
)
from fedlm.fl_core.privacy.origins.publisher_claims import claims_as_json
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, VocabularyOrigin
from fedlm.fl_core.privacy.promise.counts.counts import Counts
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.selection.private_selection import composed_bounds
from fedlm.fl_core.privacy.promise.selection.tuning_record import chosen_twice, not_chosen
from fedlm.fl_core.privacy.promise.spending import common_adjacency, events_together, rho_together, spent_before
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import ONE_UNIT, assumed


class Joint(NamedTuple):
    """What several runs have spent together."""

    trainings: tuple[Phase, ...]  # each once: the runs, and what their first parameters went through
    delta: float
    epsilon: float | None  # None where nothing is promised
    epsilon_lower: float | None  # below which no accounting of the same releases can come
    rho: float | None
    unit: str
    adjacency: str
    assumptions: tuple[str, ...]
    not_private: tuple[str, ...]  # why nothing is promised
    vocabularies: tuple[VocabularyOrigin, ...]  # each once

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary; an infinite epsilon is None."""
        finite = self.epsilon is not None and math.isfinite(self.epsilon)
        reasons = {"not_private": "; ".join(self.not_private)} if self.not_private else {}
        return self._asdict() | {
            "trainings": as_records(self.trainings),
            **claims_as_json(self.trainings, not self.not_private),
            "vocabularies": [origin.as_json() for origin in self.vocabularies],
            "epsilon": self.epsilon if finite else None,
            "assumptions": list(self.assumptions),
            "not_private": None,
            **reasons,
        }


def training_in(ledger: PrivacyLedger, folder: str) -> Phase:
    """Describe the training that a ledger is of, as it stands."""
    seen = max(end for _, end in ledger.generations)
    repeatable = settings_in(ledger.about).get("noise_seed") == "experiment"
    tuning, cohort = ledger.about.get(TUNING_FIELD), ledger.plan.noise_cohort
    reasons = [*(["its noise follows from its seed"] if repeatable else []), *not_chosen(tuning)]
    reasons += [] if cohort is None else [cohort.reason]
    training = Phase(
        command=command_of(ledger.about),
        folder=folder,
        steps=seen,
        parameters_sha256=next((one.parameters for one in reversed(ledger.releases) if one.parameters), ""),
        training_data_sha256=ledger.about.get("training_data_sha256"),
        people="same",
        not_private=next(iter(reasons), None),
        plan=ledger.plan.as_json(),
        generations=[list(part) for part in ledger.generations],
        ledger={"first": ledger.hashes[0], "last": ledger.hashes[-1], "records": len(ledger.records)}
        | {"secret": ledger.records[0]["secret"]},
        tuning=tuning,
        vocabulary=ledger.about.get(ORIGIN_FIELD),
    )
    return Origins.of_record(ledger.about).noted_in(training)


def state_together(ledgers: Mapping[str, PrivacyLedger], delta: float | None = None) -> Joint:
    """State what runs, by their folders, have spent together, and all that their first parameters went through.

    Their people are taken to be the same. What is behind several of them counts once.

    Raises:
      ConfigurationError: there is no delta, and that of the runs differs.
    """
    deltas = {ledger.delta for ledger in ledgers.values()}
    if delta is None and len(deltas) > 1:
        raise ConfigurationError(
            f"the runs state epsilon at different deltas ({sorted(deltas)}); give {setting('delta')}"
        )
    delta = deltas.pop() if delta is None else delta
    data = {ledger.about.get("training_data_sha256") for ledger in ledgers.values()}
    alike = len(ledgers) == 1 or (len(data) == 1 and data != {None})
    found: list[Phase] = []
    for folder, ledger in ledgers.items():
        found.append(training_in(ledger, folder))
        for phase in recorded_ancestry(ledger.about):
            # Who are other people to one run may be those of another.
            found.append(phase._replace(people="same") if phase.people == "disjoint" and not alike else phase)
    trainings, forked = _each_once(seen_from(found), [ledger.hashes for ledger in ledgers.values()])
    return compose_trainings(trainings, delta, [*forked, *chosen_twice(trainings)])


def compose_trainings(trainings: Sequence[Phase], delta: float, reasons: Sequence[str] = ()) -> Joint:
    """State what trainings on the same people, and what was counted in their text, spend together, where nothing speaks
    against a promise already."""
    first = next(PrivacyPlan.from_json(phase.plan) for phase in trainings if phase.plan is not None)
    data = next(phase.training_data_sha256 for phase in trainings if phase.plan is not None)
    spent, lost = spent_before(first, data, trainings)
    counts = Counts.of_trainings(trainings, data, first.unit)
    events, reasons = counts.events(), (*reasons, *lost, *counts.not_private(delta))
    adjacency = common_adjacency([one.plan for one in spent]) if spent else first.adjacency
    # Of a run that has spent something: the first may have released nothing, and bound participation otherwise.
    of = spent[0].plan if spent else first
    stated = account(dataclasses.replace(of, adjacency=adjacency), delta, [])
    lines = [line for one in spent for line in account(one.plan, delta, one.rounds).assumptions]
    promised, bounds = not reasons, composed_bounds([*events_together(spent), *events], delta)
    said = [*assumed(trainings), *counts.assumptions()]
    return Joint(
        trainings=tuple(trainings),
        delta=delta,
        epsilon=bounds.upper if promised else None,
        epsilon_lower=bounds.lower if promised else None,
        rho=None if events or not promised else rho_together(spent),
        unit=first.unit,
        adjacency=stated.adjacency,
        assumptions=tuple(dict.fromkeys([*(lines or stated.assumptions), ONE_UNIT, *said])),
        not_private=tuple(reasons),
        vocabularies=counts.vocabularies,
    )


def _each_once(found: Sequence[Phase], chains: Sequence[list[str]]) -> tuple[list[Phase], list[str]]:
    """Take every training once, as far as it went, given the hashes of all records of some ledgers; as one of the same
    people's where it is so for any run. Also returns why it is not known that a training went on in one place alone."""
    longest: dict[str, Phase] = {}
    others = []
    for phase in found:
        if phase.ledger is None:
            others.append(phase)
            continue
        known = longest.setdefault(phase.ledger["first"], phase)
        farther = max(known, phase, key=lambda one: one.ledger["records"])  # type: ignore[index]
        longest[phase.ledger["first"]] = with_all_doubts(farther, known, phase)
    doubts = []
    for phase in found:
        if phase.ledger is None:
            continue
        records, last = phase.ledger["records"], phase.ledger["last"]
        whole = [hashes for hashes in chains if hashes[0] == phase.ledger["first"] and len(hashes) >= records]
        farthest = longest[phase.ledger["first"]]
        assert farthest.ledger is not None
        if any(hashes[records - 1] != last for hashes in whole) or (
            records == farthest.ledger["records"] and last != farthest.ledger["last"]
        ):
            doubts.append(f"{phase.words} went on in two places, with the same noise over different sums")
        elif not whole and records < farthest.ledger["records"]:
            doubts.append(
                f"these runs rest on {phase.words} as it was at different times, and nothing shows that it went on in "
                "one place alone; give that run too"
            )
    return [*longest.values(), *others], list(dict.fromkeys(doubts))
