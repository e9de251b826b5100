"""What a comparison says about privacy: sentences, marks at the top, and the table of scores at equal privacy."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE
from fedlm.simulations.reporting.formatting import DASH, describe_losses, format_spread, join_words
from fedlm.simulations.reporting.gaps import Gap
from fedlm.simulations.reporting.run_privacy import NO_NOISE, RunPrivacy
from fedlm.simulations.reporting.selection import ModelResult


class Score(NamedTuple):
    """A cell of the table of scores at equal privacy; texts may be empty.

    Attributes:
      perplexity: on the test clients.
      accuracy: likewise.
      note: seeds that were lost.
      lowest: whether no other model has a lower mean perplexity with the same privacy.
      outcome: of the gap to another model with the same privacy; empty where there is none.
    """

    perplexity: str
    accuracy: str
    note: str
    lowest: bool
    outcome: str


NO_SCORE = Score(DASH, "", "no run has a held-out loss", False, "")


class PrivacyRow(NamedTuple):
    """The scores of all models with one privacy.

    Attributes:
      level: what is the same in rows that may be compared.
      mechanism: of the noise; a dash for none.
      scores: one a model.
    """

    level: str
    mechanism: str
    scores: list[Score]


def privacies_of(models: Sequence[ModelResult]) -> list[RunPrivacy]:
    """List the privacies of a comparison, those to be compared side by side: by epsilon, without noise last."""
    order = list(dict.fromkeys(entry.privacy for entry in models))
    mechanisms = list(dict.fromkeys(privacy.mechanism for privacy in order))

    def place(privacy: RunPrivacy) -> tuple[bool, bool, float, int]:
        epsilon = privacy.epsilon if privacy.epsilon is not None else -(privacy.noise_multiplier or 0.0)
        return privacy.mechanism == "none", not privacy.private, epsilon, mechanisms.index(privacy.mechanism)

    return sorted(order, key=place)


def has_noise(models: Sequence[ModelResult]) -> bool:
    """Say whether any run was asked to be private."""
    return any(entry.privacy.mechanism != "none" for entry in models)


def privacy_marks(models: Sequence[ModelResult]) -> list[str]:
    """Say in a few words, to be seen first, which of the runs are private; `NOT PRIVATE` alone where none has noise."""
    privacies = privacies_of(models)
    levels = list(dict.fromkeys(privacy.level for privacy in privacies if privacy.private))
    epsilons = [level.removeprefix("epsilon ") for level in levels]
    marks = [f"each run alone differentially private: epsilon {join_words(epsilons)}"] if levels else []
    if levels and (number := _private_runs(models)) > 1:
        marks.append(f"choosing among {number} private runs is not accounted")
    if reasons := _reasons(models):
        marks.append(f"{NOT_PRIVATE}: {'; '.join(reasons)}")
    if any(privacy.mechanism == "none" for privacy in privacies):
        marks.append(f"runs without noise: {NOT_PRIVATE}" if marks else NOT_PRIVATE)
    return marks or [NOT_PRIVATE]


def privacy_sentence(models: Sequence[ModelResult]) -> str:
    """Say what is promised of the models, and what is not."""
    if not has_noise(models):
        return f"The models are {NOT_PRIVATE}: they were trained without any differential-privacy guarantee."
    privacies = privacies_of(models)
    sentences = []
    if any(privacy.private for privacy in privacies):
        sentences += ["Each private run alone has the guarantee stated below.", *choice_warning(models)]
    if reasons := _reasons(models):
        sentences.append(
            f"Runs with noise are {NOT_PRIVATE} where {'; '.join(reasons)}. No epsilon is stated for them, whatever "
            "was asked for."
        )
    if any(privacy.mechanism == "none" for privacy in privacies):
        sentences.append(f"The runs without noise are {NOT_PRIVATE}; they show what noise costs.")
    return " ".join(sentences)


def choice_warning(models: Sequence[ModelResult]) -> list[str]:
    """Warn that choosing among private runs is not accounted; empty where there are not several."""
    number = _private_runs(models)
    if number < 2:
        return []
    return [
        f"{number} private runs were compared. No epsilon accounts for choosing the best of several runs, by learning "
        "rate, seed, model or mechanism. Whoever publishes a run that was chosen here has spent more than its epsilon."
    ]


def _private_runs(models: Sequence[ModelResult]) -> int:
    return sum(privacy.runs for privacy in privacies_of(models) if privacy.private)


def _reasons(models: Sequence[ModelResult]) -> list[str]:
    """Why nothing is promised of runs with noise, each reason once."""
    return list(dict.fromkeys(reason for privacy in privacies_of(models) for reason in privacy.reasons))


def privacy_statements(models: Sequence[ModelResult]) -> list[tuple[str, str]]:
    """List each privacy in short with what its runs state in full, each once; empty where no run has noise."""
    if not has_noise(models):
        return []
    return [(privacy.words, statement) for privacy in privacies_of(models) for statement in privacy.statements]


def privacy_rows(models: Sequence[ModelResult], found: Sequence[Gap]) -> list[PrivacyRow]:
    """Put test scores side by side that were reached at equal privacy, with the outcomes of the gaps that were found;
    empty where no run has noise."""
    if not has_noise(models):
        return []
    names = model_names(models)
    outcomes = {(gap.model, gap.label): gap.outcome for gap in found}
    rows = []
    for privacy in privacies_of(models):
        entries = {entry.model: entry for entry in models if entry.privacy == privacy}
        means = [score.mean for entry in entries.values() if (score := entry.test("perplexity"))]
        lowest = min(means) if len(means) > 1 else None
        mechanism = DASH if privacy.mechanism == "none" else privacy.mechanism
        scores = [
            _score(entry, lowest, outcomes.get((name, entry.label), "")) if entry else NO_SCORE
            for name in names
            for entry in [entries.get(name)]
        ]
        rows.append(PrivacyRow(privacy.level, mechanism, scores))
    return rows


def model_names(models: Sequence[ModelResult]) -> list[str]:
    """List the models' names, each once."""
    return list(dict.fromkeys(entry.model for entry in models))


def _score(entry: ModelResult, lowest: float | None, outcome: str) -> Score:
    if entry.selected is None:
        return NO_SCORE
    perplexity, accuracy = entry.test("perplexity"), entry.test("accuracy")
    return Score(
        format_spread("perplexity", perplexity),
        format_spread("accuracy", accuracy) if accuracy else "",
        describe_losses(entry.selected),
        perplexity is not None and perplexity.mean == lowest,
        outcome,
    )


def lowest_by_level(models: Sequence[ModelResult]) -> list[str]:
    """Say what did best at each level of privacy."""
    sentences = []
    for level in dict.fromkeys(privacy.level for privacy in privacies_of(models)):
        scored = [
            (score.mean, entry, score)
            for entry in models
            if entry.privacy.level == level and (score := entry.test("perplexity"))
        ]
        where = "Without noise" if level == NO_NOISE else f"{'At' if level.startswith('epsilon') else 'With'} {level}"
        if not scored:
            sentences.append(f"{where} no model has a test score, because no run finished.")
            continue
        _, entry, score = min(scored, key=lambda found: found[0])
        noise = "" if level == NO_NOISE else f" with {entry.privacy.mechanism} noise"
        sentences.append(
            f"{where} the lowest mean test perplexity is that of {entry.model}{noise}, "
            f"{format_spread('perplexity', score)}."
        )
    return sentences


def mechanism_sentences(models: Sequence[ModelResult]) -> list[str]:
    """Say which mechanism did best how often, of those that were compared at one epsilon with one model."""
    compared: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for entry in models:
        score = entry.test("perplexity")
        if entry.privacy.private and entry.privacy.epsilon is not None and score is not None:
            compared.setdefault((entry.model, entry.privacy.level), []).append((score.mean, entry.privacy.mechanism))
    winners = Counter(min(scores)[1] for scores in compared.values() if len(scores) > 1)
    if not winners:
        return []
    tallies = join_words([f"{mechanism} {count} times" for mechanism, count in winners.most_common()])
    return [
        f"Mechanism against mechanism, with the same model at the same epsilon, the lowest mean test perplexity was "
        f"reached by {tallies.replace(' 1 times', ' once')}, however small the difference."
    ]
