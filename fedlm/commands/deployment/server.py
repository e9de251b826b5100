"""`fedlm server`: train the runs that are submitted, one after another, with clients that dial in."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.commands.deployment.listening import Listening, listen_to_clients, listen_to_operators
from fedlm.commands.deployment.served_run import QueuedRun, log_release, make_task
from fedlm.fl_core.deployment.runs.population_settings import PopulationSettings
from fedlm.fl_core.errors import ConfigurationError, setting


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """Train the runs that are submitted, one after another, with clients that dial in.

    `fedlm run` submits runs, lists them, and pauses, resumes or stops them. Clients (`fedlm client`) need not know
    which run there is: they stay between two runs. If the server is stopped or killed, the same command goes on with
    all runs where they were. SIGTERM, or Ctrl-C, lets the current round end and be saved.
    """

    directory: tyro.conf.Positional[Path]
    """Folder of the server: its queue, a folder for each run in `runs`, and their logs."""
    listening: Listening
    population: PopulationSettings
    approval: bool = False
    """Train a private run only once somebody with the role privacy_approver, who did not submit it, has approved it
    (`fedlm run approve`). It needs --access, which says who is who."""
    standby: bool = False
    """Wait for as long as another process serves this folder, and go on in its place once it has ended, or is silent
    for five seconds. Then it writes nothing more."""


_ESSENTIALS = ("directory", "address", "keys", "insecure", "operator_address", "epsilon", "delta")


def main(argv: list[str]) -> int:
    """Run `fedlm server`."""
    command = read_options(ServerCommand, argv, "fedlm server", essentials=_ESSENTIALS)
    from fedlm.fl_core.composed_settings import compose
    from fedlm.fl_core.deployment.endpoints import Endpoints
    from fedlm.fl_core.deployment.event_log import json_log
    from fedlm.fl_core.deployment.operations.traces import traces
    from fedlm.fl_core.deployment.roles import serve_runs
    from fedlm.fl_core.deployment.runs.run_maker import RunMaker, ServerRules

    listening = command.listening
    if listening.operator_address is None:
        raise ConfigurationError(f"runs are submitted to the operators' address; give {setting('operator_address')}")
    if command.approval and listening.access is None:
        raise ConfigurationError(f"{setting('approval')} is by another person; give {setting('access')} too")
    endpoints = Endpoints(listen_to_clients(listening), listen_to_operators(listening), stands_by=command.standby)

    def task(settings: dict[str, Any]) -> Any:
        return make_task(compose(QueuedRun, **settings), listening)

    maker = RunMaker(_complete, task)
    with json_log(listening.log), traces():
        rules = ServerRules(command.approval, listening.keys)
        serving = serve_runs(maker, command.directory, endpoints, log_release, promised=command.population, rules=rules)
        asyncio.run(serving)
    return 0


def _complete(settings: dict[str, Any]) -> dict[str, Any]:
    from fedlm.fl_core.composed_settings import compose, path_settings, settings_as_json

    whole = settings_as_json(compose(QueuedRun, **settings))
    for name in path_settings(QueuedRun):
        if whole[name] is not None and not Path(whole[name]).is_absolute():
            raise ConfigurationError(f"{setting(name)} is {whole[name]}, but must be an absolute path")
    return whole


COMMAND = Command(ServerCommand, main)
