"""The rows of the report's tables, as text, and of results.csv."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NamedTuple

from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.runs.endings import UNANSWERED
from fedlm.simulations.comparisons.benchmarks import benchmark_of, changed_settings, what_scaling_changes
from fedlm.simulations.comparisons.cells import CellResult
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.reporting.costs import costs, parameters
from fedlm.simulations.reporting.formatting import (
    DASH,
    SPACE,
    describe_losses,
    format_megabytes,
    format_number,
    format_percent,
    format_perplexity,
    format_rates,
    format_spread,
)
from fedlm.simulations.reporting.selection import SCORES, ModelResult, finite


class Entry(NamedTuple):
    """A table cell."""

    text: str  # what it says; a dash where there is nothing
    note: str = ""  # why, or over how many seeds; may be empty


HEADLINE = (
    "model",
    "parameters",
    "learning rates selected (client / server)",
    "test perplexity",
    "test accuracy",
    "in-vocabulary accuracy",
    "rounds to the twin's final quality",
    "MB up a round",
    "MB down a round",
    "seconds a round",
)
RUN_SCORES = ("heldout_perplexity", "test_perplexity", "test_accuracy", "test_in_vocabulary_accuracy")
CSV_NUMBERS = (
    *(f"heldout_{score}" for score in SCORES),
    *(f"test_{score}" for score in SCORES),
    *("rounds", "parameters", "bytes_up", "bytes_down", "training_seconds"),
)
CSV_COLUMNS = (
    *("model", "client_learning_rate", "server_learning_rate", "seed", "status", "selected"),
    *CSV_NUMBERS,
    "reason",
)
PRIVACY_COLUMNS = ("mechanism", "noise_multiplier", "epsilon", "delta", "rho")
"""Columns after the seed, where a run has privacy; without numbers of a guarantee for runs that have none."""


def headline_row(entry: ModelResult) -> list[Entry]:
    """Fill a model's row of the headline table, one entry a column of `HEADLINE`."""
    group = entry.selected
    count = parameters(entry)
    name = Entry(entry.model, entry.label), Entry(format_number(count, 0), "" if count else "every run failed")
    if group is None:
        return [*name, Entry(DASH, "no run has a held-out loss"), *[Entry(DASH, "nothing selected")] * 7]
    cost = costs(group)
    prices = format_megabytes(cost.bytes_up), format_megabytes(cost.bytes_down), format_number(cost.seconds)
    speed = f"{format_number(cost.clients_per_second)} clients/s" if cost.clients_per_second else ""
    notes = "", "", speed
    return [
        *name,
        Entry(format_rates(group), describe_losses(group)),
        *(_test_score(entry, score) for score in ("perplexity", "accuracy", "in_vocabulary_accuracy")),
        _rounds_to_twin(entry),
        *(Entry(price, "not recorded" if price == DASH else note) for price, note in zip(prices, notes, strict=True)),
    ]


def _test_score(entry: ModelResult, score: str) -> Entry:
    value = entry.test(score)
    if value is not None:
        seeds = f"n = {value.seeds} seed{'' if value.seeds == 1 else 's'}"
        return Entry(format_spread(score, value), seeds if score == "perplexity" else "")
    return Entry(DASH, "no test score" if entry.selected and entry.selected.finished else "no seed finished")


def _rounds_to_twin(entry: ModelResult) -> Entry:
    if entry.twin is None:
        return Entry(DASH, "no twin to reach")
    if entry.rounds_to_twin is not None:
        return Entry(format_number(entry.rounds_to_twin, 0))
    if entry.selected is None or not entry.selected.finished:
        return Entry(DASH, "no seed finished")
    if entry.twin_perplexity is None:
        return Entry(DASH, "no seed of the twin finished")
    return Entry(DASH, f"never at {format_perplexity(entry.twin_perplexity)}")


def run_row(result: CellResult, selected: bool) -> list[str]:
    """Fill a run's row of the table of all runs, after its model and status.

    Learning rates, whether they were selected, seed, the scores of `RUN_SCORES`, rounds, seconds and the reason why it
    did not finish.
    """
    experiment, summary = result.cell.experiment, result.summary
    formats = (format_perplexity, format_perplexity, format_percent, format_percent)
    return [
        f"{experiment.client_learning_rate:g}{SPACE}/{SPACE}{experiment.server_learning_rate:g}",
        "yes" if selected else "",
        str(experiment.seed),
        *(form(summary.get(name)) for form, name in zip(formats, RUN_SCORES, strict=True)),
        str(rounds_done(result)),
        format_number(summary.get("training_seconds")),
        reason(result),
    ]


def rounds_done(result: CellResult) -> int:
    """Count the rounds that a run did."""
    return int(result.summary.get("rounds", len(result.rows)))


def reason(result: CellResult) -> str:
    """Say why a run diverged or failed; empty where it finished."""
    summary = result.summary
    if result.status == "failed":
        return summary.get("error") or "no reason recorded"
    if result.status == "diverged":
        why, at = summary.get("diverged_because") or "no reason recorded", summary.get("diverged_at_round")
        return why if at is None else f"{why} (after {at + 1:,} rounds)"
    if result.status == UNANSWERED:
        return "no client answered in any round"
    return ""


def setting_rows(comparison: Comparison) -> list[tuple[str, str]]:
    """List the names and values of all settings of a comparison."""

    def say(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(say, value))
        return f"{value:g}" if isinstance(value, float) else DASH + " (not set)" if value is None else str(value)

    return [(name, say(value)) for name, value in settings_as_json(comparison).items() if value != []]


def published_rows(comparison: Comparison, models: Sequence[ModelResult]) -> list[tuple[str, str]]:
    """Put what was published beside what the runs reached, with all that is different; nothing where a comparison
    follows no published setting."""
    found = benchmark_of(comparison)
    if found is None:
        return []
    rows = [("published setting", found.about), ("settings read in", found.source)]
    reached = {(entry.model, score): entry.test(score) for entry in models for score in SCORES}
    for target in found.targets:
        own = reached.get((target.model, target.score))
        published = (format_perplexity if target.score == "perplexity" else format_percent)(target.value)
        here = f"{format_spread(target.score, own)} here" if own else "no score here"
        rows.append((f"{target.model}: {target.of}", f"{here}, {published} published (read: {target.read})"))
    if not found.targets:
        rows.append(("published scores", "none was at hand"))
    changed = changed_settings(comparison, found)
    words = [f"{name} is {there}, published {published}" for name, published, there in changed]
    rows += [
        ("text", f"published for {found.data}; here {comparison.data}. Scores on other text do not compare"),
        ("settings changed", "; ".join(words) or "none"),
        *(("what that changes", words) for words in what_scaling_changes(changed)),
        *(("fedlm does otherwise", words) for words in found.differs),
    ]
    return rows


def machine_rows(results: Sequence[CellResult]) -> list[tuple[str, str]]:
    """List the machines and versions that the runs record, and the vocabularies of their data, with the number of
    runs."""
    machines = Counter(
        ", ".join(f"{name} {value}" for name, value in result.summary["machine"].items())
        for result in results
        if result.summary.get("machine")
    )
    vocabularies = Counter(value for result in results if (value := result.summary.get("vocabulary_sha256")))
    rows = [(f"machine of {count} runs", machine) for machine, count in machines.items()]
    rows += [(f"vocabulary (SHA-256) of {count} runs", digest) for digest, count in vocabularies.items()]
    try:
        rows.append(("fedlm that wrote this report", metadata.version("fedlm")))
    except metadata.PackageNotFoundError:
        rows.append(("fedlm that wrote this report", DASH + " (not installed as a package)"))
    return rows


def results_csv(results: Sequence[CellResult], models: Sequence[ModelResult]) -> str:
    """Write all runs as CSV: a header and a line a run, in the order of `results`; what is missing is empty."""
    chosen = selected_results(models)
    text = io.StringIO()
    private = any(result.cell.experiment.privacy.is_private for result in results)
    after_seed = CSV_COLUMNS.index("seed") + 1
    columns = CSV_COLUMNS[:after_seed] + PRIVACY_COLUMNS * private + CSV_COLUMNS[after_seed:]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for result in results:
        experiment = result.cell.experiment
        numbers = {name: result.summary.get(name) for name in CSV_NUMBERS}
        writer.writerow(
            {name: value for name, value in numbers.items() if finite(value) is not None}
            | (_privacy_columns(result) if private else {})
            | {
                "model": experiment.model,
                "client_learning_rate": experiment.client_learning_rate,
                "server_learning_rate": experiment.server_learning_rate,
                "seed": experiment.seed,
                "status": result.status,
                "selected": "yes" if id(result) in chosen else "no",
                "rounds": rounds_done(result),
                "reason": reason(result),
            }
        )
    return text.getvalue()


def _privacy_columns(result: CellResult) -> dict[str, Any]:
    guarantee = result.summary.get("privacy_guarantee") or {}
    return {
        "mechanism": result.cell.experiment.privacy.privacy,
        "noise_multiplier": result.summary.get("noise_multiplier"),
        **{name: guarantee.get(name) for name in ("epsilon", "delta", "rho")},
    }


def selected_results(models: Sequence[ModelResult]) -> set[int]:
    """Identify (by `id`) the results of the selected combinations."""
    return {id(result) for entry in models if entry.selected for result in entry.selected.results}
