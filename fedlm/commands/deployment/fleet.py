"""`fedlm fleet`: many virtual clients in one process, for load tests and demonstrations."""

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from fedlm.clients.fleet.population import Population
from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.run_endings import NO_GOOD
from fedlm.fedlm_client.text.text_examples import ExampleCut, examples_of
from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count, Positive, Range
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE

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
    """Whose text the clients have. Give the folder of a data set that `fedlm data import` wrote; its training clients
    take part, and the server must have its tokenizer. Or give a JSON Lines file of objects with `user` and `text`."""
    clients: Count = 100
    """Number of clients. If there are more clients than people, several of them have the text of one person. What a
    server states of each client then holds for no person."""
    keys: Path | None = None
    """Folder of the authority's keys, as `fedlm keys ca` makes it: every client gets a certificate from it."""
    records: Path | None = None
    """Folder where each client keeps its own count of the rounds that it took part in, as a device does (`--record` of
    `fedlm client`). If not given, clients forget it when the fleet ends. A fleet that is started again for the same run
    then relies on the server's count alone."""
    insecure: bool = False
    """Speak plain text, to a server on loopback alone."""
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
        "insecure",
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
    text_of, read_vocabulary = _people(command)
    allowed = AllowedPrograms(command.models)
    fleet = Fleet(
        command.clients,
        command.population,
        dial,
        lambda number: JaxTrainer(text_of(number), read_vocabulary, allowed),
        clock=_clock(command),
        participation=_counting(command.records),
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


def _counting(records: Path | None) -> Callable[[int], Any]:
    """Choose where clients count the rounds that they take part in."""
    from fedlm.fedlm_client.own_participation import OwnParticipation

    if records is None:
        return lambda number: OwnParticipation()
    return lambda number: OwnParticipation(records / f"{_name(number)}.participation.json")


def _name(number: int) -> str:
    return f"fleet{number}"


_Read = Callable[[int, ExampleCut], list[Any]]
"""From a person's number, and what makes an example, to the person's examples."""


class _Texts:
    """What one virtual client has; never changes."""

    def __init__(self, read: _Read, person: int, people: int, wanted: int | None):
        self._read, self._person, self._people, self._wanted = read, person, people, wanted

    def version(self) -> tuple[int, int]:
        return (0, 0)

    def examples(self, cut: ExampleCut) -> Any:
        found = list(self._read(self._person % self._people, cut))
        if self._wanted is None:
            return found
        # Where a person has too few, the next ones lend theirs, and the first again after the last.
        for lender in range(self._person + 1, self._person + self._people):
            if len(found) >= self._wanted:
                break
            found += self._read(lender % self._people, cut)
        whole = -(-self._wanted // len(found)) if found else 0
        return (found * whole)[: self._wanted]


def _people(command: FleetCommand) -> tuple[Callable[[int], Any], Any]:
    """Read whose text there is; returns from a client's number to its text, and how its tokens are made."""
    read, people, read_vocabulary = _stored(command.data) if command.data.is_dir() else _lines(command.data)
    population = command.population
    return lambda number: _Texts(read, number, people, population.examples_of(number)), read_vocabulary


def _stored(path: Path) -> tuple[_Read, int, Any]:
    from fedlm.simulations.data.federated_data import refuse_completions
    from fedlm.simulations.data.store.token_store import TokenStore, refuse_item_sequences
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

    store = TokenStore.open(path)
    refuse_completions(store, "a fleet")
    refuse_item_sequences(store, "a fleet")
    if (path / BUDGET_FILE).exists():
        raise ConfigurationError(
            f"{path}: has a privacy budget, from which a server that others connect to reserves nothing; give another "
            "data set"
        )
    split = store.split("train")
    if not split.num_clients:
        raise DataError(f"{path}: has no training client; give a data set that has some")

    def read(person: int, cut: ExampleCut) -> list[Any]:
        # The import has cut them.
        examples = split.client(person)
        return [examples.example(index) for index in range(examples.num_examples)]

    def read_vocabulary(content: bytes) -> Any:
        if Tokenizer(json.loads(content)).fingerprint != store.fingerprint:
            raise ConfigurationError(
                f"{path}: has another tokenizer than the server; give the data set whose tokenizer the server was given"
            )
        return lambda examples: examples

    return read, split.num_clients, read_vocabulary


def _lines(path: Path) -> tuple[_Read, int, Any]:
    from fedlm.simulations.data.client_text import SkippedCounts
    from fedlm.simulations.data.sources.tables.jsonl import JsonLines
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

    reading = JsonLines(paths=(path,), examples="texts").open(path.parent, lambda *progress: None)
    of_user: dict[str, list[str]] = defaultdict(list)
    for part in reading.parts:
        for found in reading.read(part.content, SkippedCounts()):
            of_user[found.client_id] += found.sentences
    if not of_user:
        raise DataError(f"{path}: has no text of anybody; expected lines with `user` and `text`")
    texts = list(of_user.values())

    def read(person: int, cut: ExampleCut) -> list[str]:
        return [example for text in texts[person] for example in examples_of(text, cut)]

    return read, len(texts), lambda content: Tokenizer(json.loads(content)).encode_batch


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
