"""`fedlm run`: submit runs to a server, and look after them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tyro
from rich.console import Console

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.commands.serving.operator_calls import OperatorCaller, OperatorOptions
from fedlm.commands.serving.served_run import ServedRun
from fedlm.commands.status import describe, runs_table
from fedlm.fl_core.json_text import json_text

_FOLLOW_SECONDS = 0.5
_OVER = ("stopped", "finished", "failed")


@dataclass(frozen=True, kw_only=True)
class SubmitCommand:
    """Submit a run to a server (`fedlm server`), which trains it after those that it was given before.

    The settings are those of `fedlm serve`. Paths are paths on the server's machine. The same name with the same
    settings is the same run, so a submission whose answer was lost may be repeated.
    """

    name: tyro.conf.Positional[str]
    """Name of the run: letters, digits, - and _."""
    run: ServedRun
    to: OperatorOptions
    json: bool = False
    """Print one JSON object instead."""


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List the runs of a server, in the order in which it trains them."""

    to: OperatorOptions
    json: bool = False
    """Print one JSON object a line for each run."""


@dataclass(frozen=True, kw_only=True)
class _OfRun:
    name: tyro.conf.Positional[str]
    """Name of the run."""
    to: OperatorOptions
    json: bool = False
    """Print one JSON object instead."""


@dataclass(frozen=True, kw_only=True)
class ShowCommand(_OfRun):
    """Show a run of a server: its settings, how it stands, and how it ended."""


@dataclass(frozen=True, kw_only=True)
class PauseCommand(_OfRun):
    """Pause a run of a server: the round under way ends and is saved, and the next run begins."""


@dataclass(frozen=True, kw_only=True)
class ResumeCommand(_OfRun):
    """Put a run of a server that was paused, or failed, back into its place in the queue."""


@dataclass(frozen=True, kw_only=True)
class StopCommand(_OfRun):
    """Stop a run of a server for good: the round under way ends and is saved, and its folder stays."""


@dataclass(frozen=True, kw_only=True)
class LogsCommand(_OfRun):
    """Print the log of a run of a server, one JSON object a line."""

    follow: bool = False
    """Go on until the run is over."""


def _submit(argv: list[str]) -> int:
    command = read_options(SubmitCommand, argv, "fedlm run submit", essentials=_ESSENTIALS)
    from fedlm.fl_core.composed_settings import settings_as_json

    answer = OperatorCaller(command.to).post(f"/runs/{command.name}", settings_as_json(command.run))
    return _print_runs([answer], command.json)


def _list(argv: list[str]) -> int:
    command = read_options(ListCommand, argv, "fedlm run list")
    return _print_runs(OperatorCaller(command.to).get("/status.json")["runs"], command.json)


def _show(argv: list[str]) -> int:
    command = read_options(ShowCommand, argv, "fedlm run show")
    run = OperatorCaller(command.to).get(f"/runs/{command.name}")
    if command.json:
        print(json_text(run))
        return 0
    _print_runs([run], as_json=False)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"folder: {run['folder']}", markup=False)
    if run["status"] is not None:
        console.print(describe(run["status"]))
    elif run["summary"] is not None:
        console.print(f"ended: {run['summary']['status']}", markup=False)
    return 0


def _acting(action: str, options: type[_OfRun]) -> Callable[[list[str]], int]:
    def act(argv: list[str]) -> int:
        command = read_options(options, argv, f"fedlm run {action}")
        return _print_runs([OperatorCaller(command.to).post(f"/runs/{command.name}/{action}")], command.json)

    return act


def _logs(argv: list[str]) -> int:
    command = read_options(LogsCommand, argv, "fedlm run logs")
    for line in _lines(OperatorCaller(command.to), command.name, command.follow):
        print(json_text(line), flush=True)
    return 0


def _lines(caller: OperatorCaller, name: str, follow: bool) -> Iterator[dict[str, Any]]:
    offset = 0
    while True:
        # Asked before the log is, so that nothing is missed of a run that ends meanwhile.
        over = not follow or caller.get(f"/runs/{name}")["state"] in _OVER
        while (found := caller.get(f"/runs/{name}/log/{offset}"))["lines"]:
            yield from found["lines"]
            offset = found["offset"]
        if over:
            return
        time.sleep(_FOLLOW_SECONDS)


def _print_runs(runs: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        for run in runs:
            print(json_text(run))
        return 0
    Console(highlight=False).print(runs_table(runs) if runs else "the server has no runs")
    return 0


_ESSENTIALS = (
    *("name", "server", "keys", "json", "vocabulary", "heldout", "model", "rounds", "client_learning_rate"),
    *("server_learning_rate", "seed", "cohort_size", "reporting_seconds", "min_separation", "max_participations"),
    *("length", "client_batch_size", "client_epochs", "server_optimizer", "update_clip_norm"),
)
_EXAMPLES = """For example:

  fedlm run submit first --config first.toml --keys keys
  fedlm run logs first --follow --keys keys"""

COMMAND = Group(
    "fedlm run",
    "action",
    "Runs of a server that trains one after another (`fedlm server`).",
    {
        "submit": ("submit a run", Command(SubmitCommand, _submit)),
        "list": ("list all runs", Command(ListCommand, _list)),
        "show": ("show a run", Command(ShowCommand, _show)),
        "pause": ("pause a run after its round", Command(PauseCommand, _acting("pause", PauseCommand))),
        "resume": (
            "go on with a run that was paused or failed",
            Command(ResumeCommand, _acting("resume", ResumeCommand)),
        ),
        "stop": ("stop a run for good after its round", Command(StopCommand, _acting("stop", StopCommand))),
        "logs": ("print the log of a run", Command(LogsCommand, _logs)),
    },
    _EXAMPLES,
)
