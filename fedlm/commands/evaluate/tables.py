"""What `fedlm evaluate` prints: tables, and sentences on how to read them."""

from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from fedlm.simulations.evaluation.client_scores import SPREAD
from fedlm.simulations.evaluation.language_tasks.measuring import TaskSettings


def ranking_table(found: dict[str, Any]) -> Table:
    """Make the table of where held-out items stand: a row a metric, for all users and by the popularity of the item."""
    title = f"{found['model']} after {found['steps']} steps, split {found['split']}, {found['users_scored']:,} users"
    parts, popularity = found["by_popularity"], found["popularity_baseline"]["scores"]
    names = (Column(name, justify="right") for name in ("all", "error", *(p["group"] for p in parts), "popularity"))
    table = Table(Column("metric", no_wrap=True), *names, title=title)
    for metric, score in found["scores"].items():
        of_parts = (part["scores"].get(metric, {}).get("value") for part in parts)
        cells = (score["value"], score["standard_error"], *of_parts, popularity[metric]["value"])
        table.add_row(metric, *map(_text, cells))
    return table


def ranking_notes(found: dict[str, Any]) -> list[str]:
    """Say in sentences what a reader of such a table must know."""
    ranking = found["ranking"]
    groups = "; ".join(
        f"{part['group']} {part['items']:,} items with {part['fewest']:,} to {part['most']:,}, {part['users']:,} users"
        for part in found["by_popularity"]
        if part["items"]
    )
    return [
        f"ranked: {ranking['candidates']}; {ranking['history']}; {ranking['ties']}",
        f"coverage: {ranking['coverage']}; popularity: all users are recommended what occurs most in training",
        f"items by their interactions in training, about a third of these in each group: {groups}",
        f"privacy of the model: {found['privacy']}",
        found["privacy_of_these_numbers"],
    ]


def task_table(found: dict[str, Any]) -> Table:
    """Make the table of what was found on tasks: a row a metric."""
    columns = ("version", "shots", "documents")
    metrics = (Column("metric", no_wrap=True), "value", "standard error")
    table = Table(Column("task", no_wrap=True), *columns, *metrics, title=f"{found['run']} by {found['library']}")
    for name, task in found["tasks"].items():
        cells = [name, *(_text(task[column]) for column in columns)]
        several = len({metric["filter"] for metric in task["metrics"]}) > 1
        for metric in task["metrics"]:
            by = f" ({metric['filter']})" if several else ""
            numbers = [f"{metric['value']:.4f}", _text(metric["standard_error"])]
            table.add_row(*map(escape, [*cells, metric["metric"] + by, *numbers]))
            cells = [""] * len(cells)
    return table


def task_notes(found: dict[str, Any], settings: TaskSettings) -> list[str]:
    """Say in sentences what a reader of such a table must know."""
    notes = []
    if found["limit"] is not None:
        notes.append(f"only the first {found['limit']} documents of each task were scored: not a score of the task")
    asked = settings.num_fewshot
    for name, task in found["tasks"].items():
        if asked is not None and task["shots"] not in (asked, None):
            notes.append(f"{name} sets its number of shots itself, {task['shots']}, and num_fewshot does not change it")
    for name, documents in found["left_out"].items():
        notes.append(
            f"{name}: no metric counts {len(documents):,} of its documents, which the model cannot score; of document "
            f"{documents[0]['document']} {documents[0]['why']}"
        )
    if found["cut"]:
        notes.append(
            f"the contexts of {found['cut']:,} of {found['requests']:,} requests were cut at their beginning, as the "
            f"model takes {found['max_length']:,} tokens"
        )
    if found["shortened"]:
        notes.append(f"answers to {found['shortened']:,} requests were ended at half of these tokens")
    if found["unknown"]:
        notes.append(
            f"{100 * found['unknown'] / found['tokens']:.1f} % of the tokens that were scored are unknown to the "
            "vocabulary, which are all one token to the model"
        )
    return [*notes, f"privacy: {found['privacy']}"]


def _text(value: Any) -> str:
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def score_table(summary: dict[str, Any]) -> Table:
    """Make the table of how an evaluation's scores are spread over clients, before and after where there are both."""
    sides = {"before": "clients", "after": "personalized_clients"}
    if "personalized_clients" not in summary:
        sides = {"": "clients"}
    title = f"{summary['model']} after {summary['rounds']} rounds, split {summary['split']}"
    when = ["when"] if len(sides) > 1 else []
    table = Table(Column("score", no_wrap=True), *when, *SPREAD, "clients", title=title)
    for score in summary["clients"]:
        for side, name in sides.items():
            numbers = summary[name][score]
            cells = [_number(score, numbers[column]) for column in SPREAD]
            table.add_row(score.replace("_", " "), *([side] if when else []), *cells, f"{numbers['count']:,}")
    return table


def describe_gain(summary: dict[str, Any]) -> str:
    """Say in one sentence what personalization did."""
    share = summary["share_of_clients_better"]
    better = "no client has a target to score" if share is None else f"{100 * share:.1f} % of the clients got better"
    before, after = (summary[name]["perplexity"] for name in ("scores", "personalized_scores"))
    numbers = [_number("perplexity", value) for value in (before, after)]
    return f"{better}; perplexity of all their text together {numbers[0]} before, {numbers[1]} after"


def _number(score: str, value: float | None) -> str:
    if value is None:
        return "\N{EN DASH}"
    if "accuracy" in score:
        return f"{value:.4f}"
    return f"{value:.2e}" if value >= 1e6 else f"{value:,.0f}" if value >= 1e3 else f"{value:.2f}"
