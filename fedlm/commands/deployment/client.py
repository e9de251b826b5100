"""`fedlm client`: take part in a deployment with text that stays on this device."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.fedlm_client.limits import LARGEST_DOWNLOAD
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, LargeCount, Positive


@dataclass(frozen=True, kw_only=True)
class ClientCommand:
    """Take part in a deployment with text that stays on this device.

    The client checks in with a server (`fedlm serve`), trains when it is selected, and sends back an update. It goes on
    until the run is over, or it has taken part as often as it may; the exit status is then 0, and 2 if its owner must
    do something. Its text, line by line `{"text": "..."}` in a JSON Lines file, never leaves the device.
    """

    server: str
    """Host and port of the server."""
    data: Path
    """JSON Lines file of this device's text."""
    credentials: Path | None = None
    """Folder of this client's certificate and key, from `fedlm keys enrol` or `fedlm keys client`; the certificate's
    name is the client's identity."""
    insecure: bool = False
    """Speak plain text. Works only with a server on loopback."""
    name: str | None = None
    """Name of this client with --insecure. Keep the same name, because the server counts by it how often a client takes
    part."""
    max_examples: Count | None = None
    """Keep this many of the newest examples, and forget the others. If not given, keep all."""
    max_age_days: Positive | None = None
    """Forget examples that were added longer ago than this."""
    models: tuple[str, ...] = ()
    """Names of the models that this client trains. If none is given, any registered one."""
    client_algorithms: tuple[str, ...] = ()
    """Names of the client algorithms that this client trains with. If none is given, any registered one."""
    largest_download: LargeCount = LARGEST_DOWNLOAD
    """Largest model or tokenizer to download, in bytes."""
    proxy: str | None = None
    """Host and port of a proxy (CONNECT), which carries the encrypted connection and cannot read it. The client never
    uses a proxy that the environment names."""
    record: Path | None = None
    """File in which this device counts the rounds that it took part in. If not given, it lies beside the text. Layers
    that stay with the device lie beside it, and one client at a time has it."""
    accept_plan: bool = False
    """Accept the population and the plan of participation that the server shows now, in place of those that it showed
    first, and secure sums without noise of another run. So the device's owner agrees to take part more often."""
    population: tuple[str, ...] = ()
    """Names of the populations that this device belongs to; its owner agrees to the first plan of each. It trains for
    one run at a time, and counts its rounds for each population. If not given, those whose plans it was shown."""
    secure_sums: bool = False
    """Take part in secure sums alone: the client masks its update, so that the server learns the sum of a cohort."""
    least_cohort: Annotated[Count | None, OnlyWith("secure_sums")] = None
    """Fewest clients of a secure sum that this client adds to. If not given, 10."""
    least_noise: Annotated[Positive | None, OnlyWith("secure_sums")] = None
    """Least noise multiplier of a secure sum that this client adds to: that of the noise which its fewest clients add,
    without 5 of 100 clients of the cohort, over the length of one client's integers. If not given, none is asked
    for."""
    receipts: Path | None = None
    """File in which this device shows what it saw of the server's log of plans, statements and releases. A folder has a
    file for each device; then the client also has the server prove that it showed the others the same history.
    `fedlm audit receipts` compares such files."""
    require_plan: bool = False
    """Take part only if the server promises a limit on how often a client takes part. A server with privacy does."""


def main(argv: list[str]) -> int:
    """Run `fedlm client`."""
    command = read_options(ClientCommand, argv, "fedlm client")
    from fedlm.clients.device.dialling import dialling
    from fedlm.clients.device.jax_trainer import JaxTrainer
    from fedlm.clients.device.kept_state import KeptState
    from fedlm.clients.device.server_instructions import AllowedPrograms
    from fedlm.fedlm_client.client import Client
    from fedlm.fedlm_client.files import held_alone
    from fedlm.fedlm_client.limits import Limits
    from fedlm.fedlm_client.own_participation import OwnParticipation
    from fedlm.fedlm_client.text.example_store import ExampleStore, Retention
    from fedlm.fedlm_client.transparency.receipts import Receipts
    from fedlm.fl_core.deployment.addresses import check_address

    check_address(command.server)
    if command.proxy is not None:
        check_address(command.proxy)
    name, sums = _identity(command), _sums(command)
    receipts = None if command.receipts is None else Receipts(command.receipts, name)
    dial = dialling(command.server, command.credentials, command.proxy)
    store = ExampleStore(command.data, Retention(command.max_examples, command.max_age_days))
    store.forget()
    record = command.record or command.data.with_name(command.data.name + ".participation.json")
    beside = command.record or command.data
    kept = KeptState(beside.with_name(beside.name + ".layers"))
    allowed = AllowedPrograms(command.models, command.client_algorithms)
    client = Client(
        lambda: dial(name),
        JaxTrainer(store, _read_vocabulary, allowed, kept),
        limits=Limits(largest_download=command.largest_download),
        notice=lambda words: print(f"fedlm client {name}: {words}", file=sys.stderr, flush=True),
        sums=sums,
        participation=OwnParticipation(
            record, command.accept_plan, command.require_plan, receipts=receipts, populations=command.population
        ),
    )
    with held_alone(record):
        client.run()
    return 0


def _sums(command: ClientCommand) -> Any:
    """Prepare for secure sums, if the client takes part in such."""
    from fedlm.fedlm_client.secure_aggregation.device import SecureSums
    from fedlm.fedlm_client.secure_aggregation.floors import Floors

    if not command.secure_sums:
        return None
    if command.credentials is None:
        raise ConfigurationError(
            f"{setting('secure_sums')} needs a certificate, with which the client signs its keys; give "
            f"{setting('credentials')}"
        )
    floors = Floors(command.least_cohort or Floors.least_cohort, noise_multiplier=command.least_noise or 0.0)
    return SecureSums.read(command.credentials, floors)


def _identity(command: ClientCommand) -> str:
    """Find out who this client is; refuse to speak plain text where others could listen."""
    from fedlm.fedlm_client.link.credentials import client_name
    from fedlm.fl_core.deployment.addresses import loopback_only

    if command.insecure:
        loopback_only(command.server)
        if command.name is None or command.credentials is not None:
            raise ConfigurationError(f"{setting('insecure')} needs a name, and no {setting('credentials')}")
        return command.name
    if command.credentials is None:
        raise ConfigurationError(
            "there are no credentials; get them with `fedlm keys enrol` and give their folder as --credentials, or "
            "give --insecure to speak plain text to a server on loopback"
        )
    if command.name is not None:
        raise ConfigurationError(
            f"{setting('name')} does nothing beside credentials, since the certificate has one; leave it out"
        )
    return client_name(command.credentials)


def _read_vocabulary(content: bytes) -> Any:
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

    return Tokenizer(json.loads(content)).encode_batch


COMMAND = Command(ClientCommand, main)
