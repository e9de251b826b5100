"""A paragraph that says what a comparison shows, whatever it shows."""

from collections.abc import Sequence

from fedlm.fl_core.runs.endings import DIVERGED, FINISHED, UNANSWERED
from fedlm.simulations.comparisons.cells import CellResult
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.reporting.formatting import (
    describe_losses,
    format_rates,
    format_spread,
    join_words,
)
from fedlm.simulations.reporting.privacy_summary import (
    lowest_by_level,
    mechanism_sentences,
    privacy_sentence,
)
from fedlm.simulations.reporting.selection import Group, ModelResult

MOST_LISTED = 8


def summary_sentences(
    comparison: Comparison, results: Sequence[CellResult], models: Sequence[ModelResult]
) -> list[str]:
    """Summarise a comparison in neutral words, the sentences of one paragraph."""
    sentences = [_count_runs(comparison, results, models), *_halvings(comparison)]
    if any(entry.label for entry in models):
        sentences += [*lowest_by_level(models), *mechanism_sentences(models)]
        sentences += [*_lost_by_privacy(models), *_edges(comparison, models)]
    else:
        sentences += [*_lowest(models), *_selections(models), *_edges(comparison, models), *_losses(models)]
    sentences.append(privacy_sentence(models))
    return sentences


def _count_runs(comparison: Comparison, results: Sequence[CellResult], models: Sequence[ModelResult]) -> str:
    counts = {
        status: sum(result.status == status for result in results)
        for status in (FINISHED, DIVERGED, UNANSWERED, "failed")
    }
    said = join_words([f"{count} {status}" for status, count in counts.items() if count or status == FINISHED])
    grid = f"{len(comparison.client_learning_rates)} by {len(comparison.server_learning_rates)}"
    labels = {entry.label for entry in models}
    privacies = f"{len(labels)} kinds of privacy, " if len(labels) > 1 else ""
    return (
        f"{_plural(len(comparison.models), 'model')}, {privacies}{grid} client and server learning rates and "
        f"{_plural(len(comparison.seeds), 'seed')} made {_plural(len(results), 'run')} of "
        f"{_plural(comparison.rounds, 'round')}: {said}."
    )


def _halvings(comparison: Comparison) -> list[str]:
    if not comparison.halvings:
        return []
    times = "once" if comparison.halvings == 1 else f"{comparison.halvings} times"
    return [
        f"The client learning rates of each server learning rate were halved {times} by the first seed's held-out "
        "loss; only the best pair was trained with every seed."
    ]


def _lowest(models: Sequence[ModelResult]) -> list[str]:
    scored = [(score.mean, entry.model, score) for entry in models if (score := entry.test("perplexity"))]
    if not scored:
        return ["No model has a test score, because no run finished."]
    if len(models) == 1:
        return [f"{scored[0][1]} has a test perplexity of {format_spread('perplexity', scored[0][2])}."]
    _, model, score = min(scored, key=lambda entry: entry[:2])
    return [f"The lowest mean test perplexity is that of {model}, {format_spread('perplexity', score)}."]


def _selections(models: Sequence[ModelResult]) -> list[str]:
    sentences = []
    without = [entry.name for entry in models if entry.selected is None]
    if without:
        sentences.append(f"No learning rates could be selected for {join_words(without)}: no run has a held-out loss.")
    for entry in models:
        group = entry.selected
        if group is None:
            continue
        if not group.finished:
            sentences.append(
                f"No run of {entry.name} finished; client / server {format_rates(group)} stands for it in the plots, "
                "by its last held-out loss."
            )
        elif len(group.finished) < len(group.results):
            sentences.append(
                f"No combination of learning rates of {entry.name} finished with every seed; the one selected "
                f"(client / server {format_rates(group)}) lacks some ({describe_losses(group)}), and its scores are "
                f"means over the {_plural(len(group.finished), 'seed')} that finished, which flatters it."
            )
    return sentences


def _lost_by_privacy(models: Sequence[ModelResult]) -> list[str]:
    """Say in short what was lost; the table of scores at equal privacy says where."""
    without = sum(not entry.test("perplexity") for entry in models)
    some = sum(
        entry.selected is not None and 0 < len(entry.selected.finished) < len(entry.selected.results)
        for entry in models
    )
    sentences = []
    if without:
        sentences.append(f"Of {len(models)} combinations of model and privacy, {without} had no run that finished.")
    if some:
        sentences.append(
            f"At the learning rates selected, {some} lost some of their seeds, and their scores are means over those "
            "that finished, which flatters them."
        )
    return sentences or ["None of the runs at the selected learning rates diverged or failed."]


def _edges(comparison: Comparison, models: Sequence[ModelResult]) -> list[str]:
    def at_edge(group: Group) -> bool:
        axes = (
            (group.client_learning_rate, comparison.client_learning_rates),
            (group.server_learning_rate, comparison.server_learning_rates),
        )
        return any(len(rates) > 1 and rate in (min(rates), max(rates)) for rate, rates in axes)

    names = [entry.name for entry in models if entry.test("perplexity") and entry.selected and at_edge(entry.selected)]
    if not names:
        return []
    more = [f"{len(names) - MOST_LISTED} more"] if len(names) > MOST_LISTED else []
    who = "every model" if len(names) == len(models) > 1 else join_words(names[:MOST_LISTED] + more)
    return [f"The learning rates selected for {who} lie at the edge of the grid; better ones may lie outside it."]


def _losses(models: Sequence[ModelResult]) -> list[str]:
    lost = [
        (entry.name, f"{format_rates(group)} ({words})")
        for entry in models
        for group in entry.groups
        if (words := describe_losses(group))
    ]
    if not lost:
        return ["No run diverged or failed."]
    by_model: dict[str, list[str]] = {}
    for model, words in lost[:MOST_LISTED]:
        by_model.setdefault(model, []).append(words)
    more = [f"{len(lost) - MOST_LISTED} more (see all runs)"] if len(lost) > MOST_LISTED else []
    listed = "; ".join([*(f"{model} at {', '.join(words)}" for model, words in by_model.items()), *more])
    return [f"Seeds were lost at these learning rates (client / server): {listed}."]


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
