"""`fedlm run`: submit runs to a server, and look after them."""

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.commands.deployment.operator_calls import ONE_RUN, OperatorCaller, OperatorOptions
from fedlm.commands.deployment.served_run import QueuedRun
from fedlm.commands.deployment.status import describe, population_lines, runs_table
from fedlm.fl_core.composed_settings import defaults_as_json
from fedlm.fl_core.deployment.addresses import check_run_name
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count

_FOLLOW_SECONDS = 0.5
_OVER = ("stopped", "finished", "failed")


@dataclass(frozen=True, kw_only=True)
class SubmitCommand:
    """Submit a run to a server (`fedlm server`), which trains its runs one after another.

    The settings are those of `fedlm serve`. Paths are paths on the server's machine; relative ones are those of the
    folder in which this command runs. The same name with the same settings is the same run, so a submission whose
    answer was lost may be repeated.
    """

    name: tyro.conf.Positional[str]
    """Name of the run: letters, digits, - and _."""
    run: QueuedRun
    to: OperatorOptions
    json: bool = False
    """Print one JSON object instead."""


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List the runs of a server, in the order in which they were submitted."""

    to: OperatorOptions
    json: bool = False
    """Print one JSON object a line for each run."""


@dataclass(frozen=True, kw_only=True)
class _OfRun:
    name: tyro.conf.Positional[str]
    """Name of the run."""
    to: OperatorOptions


@dataclass(frozen=True, kw_only=True)
class _OfRunAsJson(_OfRun):
    json: bool = False
    """Print one JSON object instead."""


@dataclass(frozen=True, kw_only=True)
class ShowCommand(_OfRunAsJson):
    """Show a run of a server: the settings that were chosen for it, how it stands, and how it ended."""


@dataclass(frozen=True, kw_only=True)
class PauseCommand(_OfRunAsJson):
    """Pause a run of a server: the round under way ends and is saved, and the next run begins."""


@dataclass(frozen=True, kw_only=True)
class ResumeCommand(_OfRunAsJson):
    """Put a run of a server that was paused, or failed, back into its place in the queue."""


@dataclass(frozen=True, kw_only=True)
class StopCommand(_OfRunAsJson):
    """Stop a run of a server for good: the round under way ends and is saved, and its folder stays."""


@dataclass(frozen=True, kw_only=True)
class ApproveCommand(_OfRunAsJson):
    """Approve a private run that somebody else submitted, where the server wants that (`fedlm server --approval`).

    Before that, `show` has its settings, and `list` what all runs together promise, this one among them.
    """


@dataclass(frozen=True, kw_only=True)
class ExtendCommand(_OfRunAsJson):
    """Submit a run that goes on where another one ended: with its model, and its settings but for the rounds.

    The statement covers what both spend. The new run reserves its own part of the population's budget. It is not
    scheduled as the other was.
    """

    new: tyro.conf.Positional[str]
    """Name of the new run."""
    rounds: Count
    """Rounds of the new run."""


@dataclass(frozen=True, kw_only=True)
class LogsCommand(_OfRun):
    """Print the log of a run of a server, one JSON object a line."""

    follow: bool = False
    """Go on until the run is over."""


def _submit(argv: list[str]) -> int:
    command = read_options(SubmitCommand, argv, "fedlm run submit", essentials=_ESSENTIALS)
    from fedlm.fl_core.composed_settings import path_settings, settings_as_json

    settings = settings_as_json(command.run)
    for name in path_settings(QueuedRun):
        if settings[name] is not None:
            settings[name] = str(Path(settings[name]).absolute())
    answer = OperatorCaller(command.to).post(_path(command.name), settings)
    return _print_runs([answer], command.json)


def _list(argv: list[str]) -> int:
    command = read_options(ListCommand, argv, "fedlm run list")
    status = OperatorCaller(command.to).get("/status.json")
    if "runs" not in status:
        raise ConfigurationError(f"{setting('server')} is {command.to.server}: {ONE_RUN}")
    _print_runs(status["runs"], command.json)
    if not command.json:
        Console(soft_wrap=True, highlight=False).print(population_lines(status["populations"]))
    return 0


def _show(argv: list[str]) -> int:
    command = read_options(ShowCommand, argv, "fedlm run show")
    run = OperatorCaller(command.to).get(_path(command.name))
    if command.json:
        print(json_text(run))
        return 0
    _print_runs([run], as_json=False)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"settings: {' '.join(_chosen(run['settings']))}", markup=False)
    console.print(f"folder: {run['folder']}", markup=False)
    console.print(f"submitted by: {run['submitted_by']}", markup=False)
    if run["approved_by"]:
        console.print(f"approved by: {run['approved_by']}", markup=False)
    if run["status"] is not None:
        console.print(describe(run["status"]))
    elif run["summary"] is not None:
        console.print(f"ended: {run['summary']['status']}", markup=False)
        if "evaluation" in run["summary"]:
            console.print(f"evaluation: {run['summary']['evaluation']['statement']}", markup=False)
    return 0


def _chosen(settings: dict[str, Any]) -> Iterator[str]:
    """Tell the settings of a run that are not the defaults, as options."""
    defaults = defaults_as_json(QueuedRun)
    for name, value in settings.items():
        if value != defaults.get(name):
            words = value if isinstance(value, list) else [value]
            yield shlex.join([f"--{name.replace('_', '-')}", *map(str, words)])


def _acting(action: str, options: type[_OfRunAsJson]) -> Callable[[list[str]], int]:
    def act(argv: list[str]) -> int:
        command = read_options(options, argv, f"fedlm run {action}")
        return _print_runs([OperatorCaller(command.to).post(f"{_path(command.name)}/{action}")], command.json)

    return act


def _extend(argv: list[str]) -> int:
    command = read_options(ExtendCommand, argv, "fedlm run extend")
    caller = OperatorCaller(command.to)
    before = caller.get(_path(command.name))
    if before["state"] not in _OVER:
        raise ConfigurationError(
            f"the run {command.name!r} is {before['state']}; only a run that is over is extended, so stop it first, or "
            "wait"
        )
    if not before["released"]:
        raise ConfigurationError(f"the run {command.name!r} has released no model; there is nothing to go on with")
    settings = before["settings"]
    if spent := [name for name in ("target_epsilon", "target_rho") if settings.get(name) is not None]:
        raise ConfigurationError(
            f"the run {command.name!r} was planned to spend {setting(spent[0])} {settings[spent[0]]} in all; give the "
            f"new run a plan of its own, with `fedlm run submit {command.new} --init-from {before['folder']}`"
        )
    settings |= {"init_from": before["folder"], "initial_data": "same", "rounds": command.rounds}
    settings |= {"not_before": None, "not_after": None}
    if before["first_round"] is not None:
        # As many as devices of the population allow in so many rounds.
        settings["max_participations"] = None
    return _print_runs([caller.post(_path(command.new), settings)], command.json)


def _logs(argv: list[str]) -> int:
    command = read_options(LogsCommand, argv, "fedlm run logs")
    for line in _lines(OperatorCaller(command.to), command.name, command.follow):
        print(json_text(line), flush=True)
    return 0


def _lines(caller: OperatorCaller, name: str, follow: bool) -> Iterator[dict[str, Any]]:
    offset, path = 0, _path(name)
    while True:
        # Asked before the log is, so that nothing is missed of a run that ends meanwhile.
        over = not follow or caller.get(path)["state"] in _OVER
        while (found := caller.get(f"{path}/log/{offset}"))["offset"] != offset:
            yield from found["lines"]
            offset = found["offset"]
        if over:
            return
        time.sleep(_FOLLOW_SECONDS)


def _path(name: str) -> str:
    check_run_name(name)
    return f"/runs/{name}"


def _print_runs(runs: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        for run in runs:
            print(json_text(run))
        return 0
    Console(highlight=False).print(runs_table(runs))
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
        "extend": ("go on with the model of a run that is over", Command(ExtendCommand, _extend)),
        "approve": ("approve a private run", Command(ApproveCommand, _acting("approve", ApproveCommand))),
        "logs": ("print the log of a run", Command(LogsCommand, _logs)),
    },
    _EXAMPLES,
)
