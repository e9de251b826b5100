"""What a run's record says of other runs that it was compared with, under `TUNING_FIELD`: None of a run by itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedlm.fl_core.privacy.origins.ancestry import Phase, on_other_data
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw

Tuning = Mapping[str, Any] | None
UNCHOSEN = "it is a trial that a private selection did not choose, and the selection covers only the chosen trial"
_OF_SELECTION = (
    "only the operator knows how many runs {} was chosen from, and the scores and models of the others",
    "nobody looked at the data to fix the candidates; the runs that {} was chosen from were drawn from these",
    "the score of {} depends only on its released models and on other people's data; these people are the same whoever "
    "trains, and nothing is promised to them",
)


def law_of(tuning: Tuning) -> TrialsLaw | None:
    """Read the distribution of the number of trials; None of a run that is no trial of a private selection."""
    selection = (tuning or {}).get("selection")
    if selection is None:
        return None
    return TrialsLaw(selection["distribution"], selection["expected_trials"], selection["eta"])


def not_chosen(tuning: Tuning) -> list[str]:
    """Say why nothing is promised of a trial of a private selection that was not chosen; nothing of other runs."""
    return [UNCHOSEN] if law_of(tuning) is not None and not (tuning or {}).get("chosen") else []


def choice_in_words(tuning: Tuning) -> list[str]:
    """Say what private selection a run is the outcome of; nothing of other runs."""
    law = law_of(tuning)
    return [] if law is None else [f"the best of several such runs, whose number was drawn from a {law.words()}"]


def assumed_of_choice(words: str, tuning: Tuning) -> list[str]:
    """Say what has to hold of the choice of a run, which words name, that nothing enforces."""
    if tuning is None:
        return []
    if law_of(tuning) is not None:
        return [line.format(words) for line in _OF_SELECTION]
    return [
        f"nobody chose {words} by looking at the others among the {tuning['runs']} or more private runs of its "
        "comparison; such a choice is not accounted for"
    ]


def provisos_of_choice(tuning: Tuning) -> Iterator[str]:
    """Name in short what an epsilon does not cover of a choice, or only by a user's word."""
    if "runs" in (tuning or {}):
        yield f"one of {(tuning or {})['runs']} private runs compared: choosing is not accounted"
    if "selection" in (tuning or {}):
        yield "outcome of a private selection"


def may_be_scorers(training_data: str | None, ancestry: Sequence[Phase], law: TrialsLaw | None) -> list[str]:
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


def chosen_twice(trainings: Sequence[Phase]) -> list[str]:
    """Say which trainings are outcomes of the same private selection, gone on with in several copies of its folder:
    their numbers of runs, and perhaps the runs, are not independent."""
    outcomes: dict[str, list[str]] = {}
    for phase in trainings:
        if phase.people == "same" and law_of(phase.tuning) is not None and not not_chosen(phase.tuning):
            outcomes.setdefault(str((phase.tuning or {})["selection"].get("id")), []).append(phase.words)
    return [
        f"one private selection chose {' and '.join(words)}, but it covers only one run"
        for words in outcomes.values()
        if len(words) > 1
    ]
