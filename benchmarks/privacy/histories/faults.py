"""Known faults, put into the product one at a time: each must be found, or the histories would prove nothing.

Some of them are how earlier versions were.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from fedlm.fl_core.privacy import participation_record, private_rounds, releases, spending, statement
from fedlm.fl_core.privacy.accounting import events_of
from fedlm.fl_core.privacy.ledger import PrivacyLedger
from fedlm.fl_core.privacy.mechanisms.strategy import StrategyMechanism
from fedlm.fl_core.privacy.private_cohorts import ParticipationLimiter
from fedlm.fl_core.privacy.vocabulary_origin import VocabularyOrigin
from fedlm.fl_core.runs import data_budget, driver, identity, initial_parameters, lineage, publishing
from fedlm.fl_core.runs.private_releases import PrivateReleases
from fedlm.fl_core.runs.recorded_runs import RecordedRun
from fedlm.simulations.pretraining import cyclic_sampling
from fedlm.simulations.reporting.run_privacy import RunPrivacy


class SeededFault(NamedTuple):
    """A fault, and what it stands for."""

    says: str
    parts: tuple[tuple[Any, str, Any], ...]  # where, which name, and what takes its place

    def put_in(self) -> contextlib.AbstractContextManager[Any]:
        """Have the product so."""
        stack = ExitStack()
        for where, name, what in self.parts:
            stack.enter_context(patch.object(where, name, what))
        return stack


def _without_people(real: Callable[..., Any]) -> Callable[..., Any]:
    def behind(ancestors: Any, parent: Any, initial_data: Any, training_data: Any) -> Any:
        found = real(ancestors, parent, "same", training_data)
        kept = {phase.folder: phase.people for phase in ancestors}
        return tuple(phase._replace(people=kept.get(phase.folder, initial_data)) for phase in found)

    return behind


def _same_settings_alone(self: identity.RunIdentity, found: dict[str, Any], directory: Any) -> None:
    _CHECK(dataclasses.replace(self, facts={}), found, directory)


_CHECK = identity.RunIdentity.check
_RESUMED = releases.Releases._resumed
_STATE_PLAN = statement.state_plan


def _again_from_the_checkpoint(self: releases.Releases, plan: Any) -> releases.Resumed:
    """Rounds whose checkpoint was lost run again, with the same noise over whatever sums they have then."""
    found = _RESUMED(self, plan)
    return found._replace(next_round=found.checkpoint, secret=self._secret_path(0).read_bytes())


def _last_generation(self: PrivacyLedger) -> list[tuple[int, int]]:
    return _GENERATIONS(self)[-1:]


_GENERATIONS: Callable[[PrivacyLedger], list[tuple[int, int]]] = PrivacyLedger.generations.fget  # type: ignore[attr-defined]


def _known_releases(self: PrivacyLedger) -> list[tuple[int, int]]:
    """Only rounds whose checkpoint is known to be on disk."""
    last = self.last_release
    rounds = last.rounds if last else 0
    return [(first, min(end, rounds)) for first, end in _GENERATIONS(self)]


def _own_alone(plan: Any, delta: float, about: dict[str, Any], *others: Any) -> Any:
    return _STATE_PLAN(plan, delta, about | {"ancestry": []}, *others)


def _one_place(found: Any, chains: Any) -> Any:
    return _EACH_ONCE(found, chains)[0], []


def _taking_part_once(self: StrategyMechanism, plan: Any, generations: Any) -> float:
    return sum(self.stretch_squared(plan, end - first, 1, 1) for first, end in generations if end > first)


_EACH_ONCE = statement._each_once
_BEHIND = initial_parameters.training_behind
_STATED = statement.state_plan


def _secret_anyhow(plan: Any, delta: float, about: dict[str, Any], generations: Any = None, secret: bool = True) -> Any:
    settings = dict(statement.settings_in(about)) | {"noise_seed": "entropy"}
    kind = "pretraining" if "pretraining" in about else "experiment"
    return _STATED(plan, delta, about | {kind: settings}, generations, True)


FAULTS = {
    "init_from_forgets": SeededFault(
        "a run that begins with another's parameters does not know what these went through, as in earlier versions",
        ((initial_parameters, "training_behind", lambda *arguments: ()),),
    ),
    "disjoint_for_ever": SeededFault(
        "who were other people to the parent stay other people, whoever is trained on now",
        ((initial_parameters, "training_behind", _without_people(_BEHIND)),),
    ),
    "participation_by_index": SeededFault(
        "a run goes on with changed data, and counts how often clients took part by index, as in earlier versions",
        (
            (identity.RunIdentity, "check", _same_settings_alone),
            (participation_record.ParticipationRecord, "_may", lambda *arguments: True),
        ),
    ),
    "data_not_compared": SeededFault(
        "a run goes on with changed data, and samplers alone hold it to what is promised of participation",
        (
            (identity.RunIdentity, "check", _same_settings_alone),
            (participation_record.ParticipationRecord, "settle", lambda self, rounds: None),
            (participation_record.ParticipationRecord, "note", lambda *arguments: None),
            (participation_record.ParticipationRecord, "write", lambda self: None),
        ),
    ),
    "killed_rounds_forgotten": SeededFault(
        "rounds whose checkpoint was not whole when the process was killed count as not released",
        ((PrivacyLedger, "generations", property(_known_releases)),),
    ),
    "noise_before_forgotten": SeededFault(
        "what was released before noise began anew is not counted",
        ((PrivacyLedger, "generations", property(_last_generation)),),
    ),
    "adaptive_count_is_free": SeededFault(
        "the count of clipped updates is released, and the sum's noise is not greater for it",
        ((private_rounds.AdaptiveClipping, "sum_noise", lambda self, noise_multiplier: noise_multiplier),),
    ),
    "clip_norm_twice": SeededFault(
        "updates are clipped to twice what noise goes by",
        ((private_rounds.PrivateRounds, "clip_norm", lambda self, state: 2 * float(state.clip_norm)),),
    ),
    "everybody_may": SeededFault(
        "nobody bounds how often clients take part",
        (
            (ParticipationLimiter, "eligible", lambda self, round_number: self._count >= 0),
            (participation_record.ParticipationRecord, "_may", lambda *arguments: True),
        ),
    ),
    "cohorts_of_the_seed": SeededFault(
        "who takes part follows from the seed of the experiment, which everybody knows",
        ((PrivateReleases, "draw_seed", lambda self: None),),
    ),
    "vocabulary_is_free": SeededFault(
        "a private vocabulary is not composed with the runs on it",
        ((spending, "vocabulary_events", lambda *arguments: ()),),
    ),
    "vocabulary_is_covered": SeededFault(
        "it is not said that a vocabulary was made of the training data",
        ((VocabularyOrigin, "sentence", lambda self: "the vocabulary is covered"),),
    ),
    "seeded_noise_is_secret": SeededFault(
        "noise that follows from the seed counts as secret",
        ((statement, "state_plan", _secret_anyhow), (publishing, "state_plan", _secret_anyhow)),
    ),
    "release_of_itself_alone": SeededFault(
        "what is published states the last run alone",
        ((publishing, "state_plan", _own_alone),),
    ),
    "list_of_anything": SeededFault(
        "the list of runs has the epsilon of the noise, whatever the parameters went through",
        (
            (
                RecordedRun,
                "privacy",
                property(lambda self: "epsilon 0.1 at delta 1e-05; VOCABULARY NOT COVERED; assumed"),
            ),
        ),
    ),
    "two_places_are_one": SeededFault(
        "a run whose folder was copied goes on in both places, and counts once",
        ((statement, "_each_once", _one_place), (lineage.Lineage, "go_on", lambda self: None)),
    ),
    "budget_once": SeededFault(
        "a budget forgets what other runs have reserved",
        ((data_budget, "_trainings", lambda records: []),),
    ),
    "correlated_noise_once": SeededFault(
        "correlated noise is accounted as if every client took part once",
        ((StrategyMechanism, "sensitivity_squared", _taking_part_once),),
    ),
    "parts_do_not_take_turns": SeededFault(
        "with banded noise every unit may be in the batch of every step",
        ((cyclic_sampling, "_parts", lambda seed, count, cycle, equal: [np.arange(count)] * cycle),),
    ),
    "choice_is_free": SeededFault(
        "the best of a random number of runs has spent what any of them has",
        ((statement.Spending, "events", lambda self: list(events_of(self.plan, self.rounds))),),
    ),
    "trials_are_covered": SeededFault(
        "runs that a private selection has not chosen state what the chosen one does",
        ((statement, "is_unchosen", lambda tuning: False),),
    ),
    "report_of_the_target": SeededFault(
        "a report on a comparison has an epsilon of its own",
        ((RunPrivacy, "epsilon", property(lambda self: 0.1, lambda self, value: None)),),
    ),
    "summary_of_the_first_step": SeededFault(
        "a summary states what one step spends",
        (
            (
                driver.Run,
                "finish",
                lambda self, params, facts, real=driver.Run.finish: _first_step(real, self, params, facts),
            ),
        ),
    ),
}


def _first_step(real: Callable[..., Any], run: Any, params: Any, facts: dict[str, Any]) -> Any:
    with patch.object(PrivacyLedger, "generations", property(lambda self: [(0, 1)])):
        return real(run, params, facts)
