"""`fedlm status`: how a running server stands, for terminals."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.commands.deployment.operator_calls import OperatorCaller, OperatorOptions
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.participation.realised import participation_in_words


@dataclass(frozen=True, kw_only=True)
class StatusCommand:
    """Say how a running server stands: its round, the funnel of clients, scores, and privacy spent.

    The same as the operators' page shows; `fedlm serve --operator-address` switches both on.
    """

    of: OperatorOptions
    watch: bool = False
    """Print the status once a second until interrupted."""
    json: bool = False
    """Print one JSON object instead; with `--watch` one a line."""


def main(argv: list[str]) -> int:
    """Run `fedlm status`."""
    command = read_options(StatusCommand, argv, "fedlm status")
    if command.json:
        for status in _statuses(command):
            print(json_text(status), flush=True)
        return 0
    console = Console()
    if not command.watch:
        console.print(*map(describe, _statuses(command)))
        return 0
    with Live(console=console, auto_refresh=False) as live:
        for status in _statuses(command):
            live.update(describe(status), refresh=True)
    return 0


def _statuses(command: StatusCommand) -> Iterator[dict[str, Any]]:
    caller = OperatorCaller(command.of)
    yield caller.get("/status.json")
    while command.watch:
        time.sleep(1.0)
        yield caller.get("/status.json")


def describe(status: dict[str, Any]) -> Group:
    """Put a status, as `fedlm.fl_core.deployment.operations.overview.Overview.read` tells it, into lines, or that of a
    server of several runs into a table."""
    if "runs" in status:
        return Group(runs_table(status["runs"]), population_lines(status["populations"]))
    run, clients = status["run"], status["clients"]
    lines: list[Any] = [
        Text(f"{run['model']}: {run['released']} of {run['rounds']} rounds done, {run['doing']}", style="bold"),
        Text(f"clients: {clients['within_a_day']} checked in within a day, {clients['known']} ever"),
    ]
    if status["round"] is not None:
        lines += _round_lines(status["round"])
    for name, points in status["curves"].items():
        lines.append(Text(f"{name.replace('_', ' ')}: {points[-1][1]:.4g} after round {points[-1][0]}"))
    if status.get("evaluation") is not None:
        lines.append(Text(f"evaluation: {status['evaluation']['statement']}"))
    totals = status["totals"]
    lines.append(
        Text(
            f"in all: {totals['finished']} rounds count, {totals['abandoned']} abandoned; {totals['reported']} reports "
            f"of {totals['selected']} selected; {totals['bytes_down']:,} bytes down, {totals['bytes_up']:,} up"
        )
    )
    lines.append(Text(f"participation: {participation_in_words(status['participation'])}"))
    return Group(*lines, Text(_privacy_line(status["privacy"])))


def runs_table(runs: list[dict[str, Any]]) -> Table | Text:
    """Put runs, as a server of several tells them, into a table; where there are none, say so."""
    if not runs:
        return Text("the server has no runs")
    table = Table("run", "population", "model", "state", "rounds", "submitted", box=None, pad_edge=False)
    for run in runs:
        waits = f", not before {_minute(run['not_before'])}" if run["not_before"] else ""
        state = run["doing"] or (f"{run['state']}: {run['reason']}" if run["reason"] else run["state"] + waits)
        words = run["name"], run["population"], run["model"], state, f"{run['released']} of {run['rounds']}"
        table.add_row(*map(escape, (*words, _minute(run["submitted"]))))
    return table


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def population_lines(populations: list[dict[str, Any]]) -> Text:
    """Say what is promised of all runs together, to each population."""
    return Text("\n".join(line for one in populations for line in one["statement"]) or "NOT PRIVATE")


def _round_lines(found: dict[str, Any]) -> list[Any]:
    left = found["seconds_left"]
    state = (
        "over" if not found["open"] else "waits for a client" if left is None else f"open, {left:.0f} s left at most"
    )
    funnel = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    most = max(found["checked_in"], found["selected"], found["goal"], 1)
    for stage in ("checked_in", "selected", "reported", "dropped"):
        bar = ProgressBar(total=most, completed=found[stage], width=30)
        declined = f"  {found['declined']} declined" if stage == "dropped" and found["declined"] else ""
        funnel.add_row("  " + stage.replace("_", " "), str(found[stage]), bar, declined)
    return [Text(f"round {found['round_number'] + 1} ({state}), waits for {found['goal']} reports:"), funnel]


def _privacy_line(privacy: dict[str, Any] | None) -> str:
    if privacy is None or not privacy["private"]:
        return "NOT PRIVATE"
    spent, budget = (
        math.inf if value is None else value for value in (privacy["epsilon_spent"], privacy["epsilon_budget"])
    )
    return (
        f"privacy: epsilon {rounded_up(spent)} of {rounded_up(budget)} spent at delta {rounded_up(privacy['delta'])}; "
        f"{privacy['statement']}"
    )


COMMAND = Command(StatusCommand, main)
