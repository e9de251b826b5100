"""`fedlm fleet`: many virtual clients in one process, for load tests and demonstrations."""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from fedlm.clients.fleet.population import Population
from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.run_endings import NO_GOOD
from fedlm.commands.deployment.fleet_texts import texts_of
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count, Positive, Range

_TERMINAL_SECONDS, _PLAIN_SECONDS = 1.0, 15.0


@dataclass(frozen=True, kw_only=True)
class FleetCommand:
    """Run many virtual clients of a server (`fedlm serve`), each over a connection of its own.

    They train on real text, but their devices are drawn from a population: these come and go with the day, drop out,
    and have slow links and processors. A client is called fleet0, fleet1, and so on.
    """

    population: Population
    server: str
    """Host and port of the server."""
    data: Path
    """Whose text the clients have: folder of a data set that `fedlm data import` wrote. Its training clients take part,
    and the server must have its tokenizer."""
    clients: Count = 100
    """Number of clients. If there are more clients than people, several of them have the text of one person. What a
    server states of each client then holds for no person."""
    keys: Path | None = None
    """Folder of the authority's keys, as `fedlm keys ca` makes it: every client gets a certificate from it."""
    records: Path | None = None
    """Folder where each client keeps its own count of the rounds that it took part in, as a device does (`--record` of
    `fedlm client`). If not given, clients forget it when the fleet ends. A fleet that is started again for the same run
    then relies on the server's count alone."""
    belongs_to: Annotated[tuple[str, ...], tyro.conf.arg(name="population")] = ()
    """Names of the populations that all clients belong to. If not given, the one that the server shows first."""
    insecure: bool = False
    """Speak plain text, to a server on loopback alone."""
    secure_sums: bool = False
    """Take part in secure sums alone, of any size and noise, with the certificates that --keys gives."""
    models: tuple[str, ...] = ()
    """Names of the models that clients train. If none is given, any registered one."""
    hour: Annotated[float, Range(least=0, most=24)] | None = None
    """Hour of the population's day at which to begin, from 0 to 24. If not given, that of the clock, in UTC."""
    seconds: Positive | None = None
    """Stop after this many seconds. If not given, stop when the run is over."""
    json: bool = False
    """Print the summary as one JSON object."""


_ESSENTIALS = (
    *(
        "server",
        "data",
        "clients",
        "keys",
        "records",
        "belongs_to",
        "insecure",
        "secure_sums",
        "seconds",
        "hour",
        "json",
        "availability",
    ),
    *("dropout", "seed"),
)


def main(argv: list[str]) -> int:
    """Run `fedlm fleet`."""
    command = read_options(FleetCommand, argv, "fedlm fleet", essentials=_ESSENTIALS)
    from fedlm.fedlm_client.files import held_alone
    from fedlm.fl_core.atomic_files import make_folder

    if command.records is None:
        return _run_fleet(command)
    make_folder(command.records)
    with held_alone(command.records, "another folder with --records"):
        return _run_fleet(command)


def _run_fleet(command: FleetCommand) -> int:
    from fedlm.clients.device.jax_trainer import JaxTrainer
    from fedlm.clients.device.server_instructions import AllowedPrograms
    from fedlm.clients.fleet.fleet import Fleet

    dial = _dialling(command)
    text_of, read_vocabulary = texts_of(command.data, command.population)
    allowed = AllowedPrograms(command.models)
    fleet = Fleet(
        command.clients,
        command.population,
        dial,
        lambda number: JaxTrainer(text_of(number), read_vocabulary, allowed),
        clock=_clock(command),
        participation=_counting(command),
        sums=_sums(command),
    )
    started = time.monotonic()
    over = asyncio.run(_run(fleet, command.seconds))
    summary = _summary(fleet, over, time.monotonic() - started)
    if command.json:
        print(json_text(summary))
    else:
        Console().print(_table(summary))
    return 0 if fleet.tally.answers["accepted"] else NO_GOOD


async def _run(fleet: Any, seconds: float | None) -> bool:
    showing = asyncio.create_task(_show(fleet))
    try:
        return await fleet.run(seconds)
    finally:
        showing.cancel()


async def _show(fleet: Any) -> None:
    live = sys.stderr.isatty()
    while True:
        await asyncio.sleep(_TERMINAL_SECONDS if live else _PLAIN_SECONDS)
        tally = fleet.tally
        line = (
            f"fleet: {fleet.available()} of {len(fleet.devices)} devices there, {tally.check_ins} check-ins, "
            f"{tally.selected} selected, {tally.answers['accepted']} reported, {tally.dropped} dropped"
        )
        print(f"\r{line}\033[K" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)


def _clock(command: FleetCommand) -> Callable[[], float]:
    if command.hour is None:
        return time.time
    ahead = command.hour / 24 * command.population.day_seconds - time.monotonic()
    return lambda: time.monotonic() + ahead


def _dialling(command: FleetCommand) -> Callable[[int], Any]:
    """Choose how clients dial; with keys, make the certificates that are not there yet."""
    from fedlm.clients.device.dialling import dialling
    from fedlm.fedlm_client.link.credentials import CLIENT
    from fedlm.fl_core.deployment.addresses import check_address, check_keys, loopback_only
    from fedlm.fl_core.deployment.security.keys import Authority

    check_address(command.server)
    check_keys(command.keys, command.insecure, "plain text to a server on loopback")
    if command.keys is None:
        loopback_only(command.server)
        dial_as = dialling(command.server, None)
        return lambda number: dial_as(_name(number))
    authority, folder, dials = Authority(command.keys), command.keys / "clients", []
    for name in map(_name, range(command.clients)):
        if not (folder / name / f"{CLIENT}.pem").exists():
            authority.make_client(name)
        dials.append(dialling(command.server, folder / name))
    return lambda number: dials[number](_name(number))


def _counting(command: FleetCommand) -> Callable[[int], Any]:
    """Choose where clients count the rounds that they take part in."""
    from fedlm.fedlm_client.own_participation import OwnParticipation

    def count(number: int) -> OwnParticipation:
        record = None if command.records is None else command.records / f"{_name(number)}.participation.json"
        return OwnParticipation(record, populations=command.belongs_to)

    return count


def _sums(command: FleetCommand) -> Callable[[int], Any]:
    """Choose what clients need for secure sums; call it once there are certificates."""
    from fedlm.fedlm_client.secure_aggregation.device import SecureSums
    from fedlm.fedlm_client.secure_aggregation.floors import Floors

    if not command.secure_sums:
        return lambda number: None
    if command.keys is None:
        raise ConfigurationError(
            f"{setting('secure_sums')} needs certificates, with which clients sign their keys; give {setting('keys')}"
        )
    folder = command.keys / "clients"
    return lambda number: SecureSums.read(folder / _name(number), Floors(least_cohort=2))


def _name(number: int) -> str:
    return f"fleet{number}"


def _summary(fleet: Any, over: bool, seconds: float) -> dict[str, Any]:
    found = vars(fleet.tally)
    return {
        "over": over,
        "seconds": round(seconds, 3),
        "clients": len(fleet.devices),
        **found,
        "rounds": len(found["rounds"]),
        "answers": dict(sorted(found["answers"].items())),
    }


def _table(summary: dict[str, Any]) -> Table:
    table = Table(title="the run is over" if summary["over"] else "stopped before the run was over", show_header=False)
    for name, value in summary.items():
        if name == "answers":
            for status, count in value.items():
                table.add_row(f"reports {status}", f"{count:,}")
        elif name != "over":
            table.add_row(name.replace("_", " "), f"{value:,}")
    return table


COMMAND = Command(FleetCommand, main)
