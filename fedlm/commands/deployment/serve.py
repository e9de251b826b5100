"""`fedlm serve`: train one model with clients that dial in."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.run_endings import exit_status_in
from fedlm.commands.deployment.listening import Listening, listen_to_clients, listen_to_operators
from fedlm.commands.deployment.served_run import ServedRun, log_release, make_task
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import NotNegative

if TYPE_CHECKING:
    from fedlm.fl_core.deployment.endpoints import Endpoints


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """Train one model with clients that dial in.

    Clients (`fedlm client`) hold their own text and train on it. The server selects some of them for each round, sends
    them the model, and applies the mean of their updates. Rounds, noise, ledger and checkpoints are those of `fedlm
    simulate`. If you stop the server, the same command goes on where it was, and clients carry on. SIGTERM, or Ctrl-C,
    lets the current round end and be saved. A second one ends the process at once, and loses no release either.
    """

    run: ServedRun
    listening: Listening
    out: Path
    """Folder of the run."""
    database: str | None = None
    """Database of rounds, check-ins and participation: postgresql://USER@HOST/DATABASE, whose password is in ~/.pgpass
    or the file that PGPASSFILE names, or sqlite:///FILE. If not given, SQLite in the run's folder."""
    role: Literal["all", "coordinator", "aggregator"] = "all"
    """What this process does. `all`: everything. To grow past one process, run one `coordinator`, which no client talks
    to, and several `aggregator`s. These select clients, send them the model and add up their reports. All have the same
    configuration and --database, and each an --out of its own. Aggregators on one machine share --address."""
    standby: bool = False
    """Wait for as long as another process with the same --out and --database runs the rounds, and go on in its place
    once it has ended, or is silent for five seconds. Then it writes nothing more."""
    linger_seconds: NotNegative = 30.0
    """Seconds for which the server still tells clients that the run is over, before it ends."""


_ESSENTIALS = (
    *("out", "vocabulary", "heldout", "address", "keys", "insecure", "operator_address", "model", "rounds"),
    *("client_learning_rate", "server_learning_rate", "seed", "cohort_size", "reporting_seconds", "min_separation"),
    *("max_participations", "length", "client_batch_size", "client_epochs", "server_optimizer", "update_clip_norm"),
    *("privacy", "noise_multiplier", "target_epsilon", "delta"),
)


def main(argv: list[str]) -> int:
    """Run `fedlm serve`."""
    command = read_options(ServeCommand, argv, "fedlm serve", essentials=_ESSENTIALS)
    from fedlm.fl_core.deployment.event_log import json_log
    from fedlm.fl_core.deployment.operations.traces import traces

    if command.role != "all" and command.database is None:
        raise ConfigurationError(
            f"{setting('role')} is {command.role}, which needs a database that its processes share; give --database"
        )
    if command.role != "all" and command.run.deployment.aggregation not in ("mean", "secure"):
        raise ConfigurationError(f"{setting('aggregation')} needs all reports in one process; leave it, or role, out")
    if command.role == "aggregator" and command.standby:
        raise ConfigurationError(f"{setting('standby')} is for a coordinator; start as many aggregators as you like")
    if command.role == "aggregator" and command.listening.address.rsplit(":", 1)[-1] == "0":
        raise ConfigurationError("aggregators share their port, which cannot be 0; give --address a port")
    endpoints = _endpoints(command)
    with json_log(command.listening.log), traces():
        over = asyncio.run(_process(command, endpoints))
    return exit_status_in(command.out) if over and command.role != "aggregator" else 0


def _process(command: ServeCommand, endpoints: "Endpoints") -> Coroutine[Any, Any, Any]:
    from fedlm.fl_core.deployment.roles import aggregate, coordinate, serve

    task = make_task(command.run, command.listening)
    if command.role == "all":
        return serve(task, command.out, endpoints, log_release, database=command.database)
    assert command.database is not None
    if command.role == "coordinator":
        return coordinate(task, command.out, endpoints, log_release, database=command.database)
    return aggregate(task, command.out, endpoints, command.database)


def _endpoints(command: ServeCommand) -> "Endpoints":
    from fedlm.fl_core.deployment.endpoints import Endpoints

    clients = None
    if command.role != "coordinator":
        clients = listen_to_clients(command.listening, shared=command.role == "aggregator")
    return Endpoints(clients, listen_to_operators(command.listening), command.linger_seconds, command.standby)


COMMAND = Command(ServeCommand, main)
