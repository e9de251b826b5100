"""`fedlm client`: take part in a deployment with text that stays on this device."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from fedlm.options import add_configuration
from fl_core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ClientCommand:
    """Take part in a deployment with text that stays on this device.

    The client checks in with a server (`fedlm serve`), trains when it is selected, and sends back an update; it goes on
    until the run is over. Its text, line by line `{"text": "..."}` in a JSON Lines file, never leaves the device.
    """

    server: str
    """Host and port of the server."""
    data: Path
    """JSON Lines file of this device's text."""
    name: str
    """What this client calls itself; always the same, since the server counts by it how often a client takes part."""
    insecure: bool = False
    """Speak plain text; to a server on loopback alone."""
    max_examples: int | None = None
    """Keep the newest so many examples, and forget the others; all where it is not given."""
    max_age_days: float | None = None
    """Forget examples that were added longer ago than this."""
    models: tuple[str, ...] = ()
    """Names of the models to train; any registered one where none is given."""


def main(argv: list[str]) -> int:
    """Run `fedlm client`.

    Args:
      argv: its options.

    Returns:
      The exit status.
    """
    command = tyro.cli(ClientCommand, args=add_configuration(argv, ClientCommand), prog="fedlm client")
    from clients.example_store import ExampleStore, Retention
    from clients.network_client import Client
    from clients.settings import ClientLimits
    from fl_core.serving.server import loopback_only
    from fl_core.transport.grpc_client import GrpcChannel

    if not command.insecure:
        raise ConfigurationError("there are no keys; give --insecure to speak plain text to a server on loopback")
    loopback_only(command.server)
    store = ExampleStore(command.data, Retention(command.max_examples, command.max_age_days))
    store.forget()
    client = Client(
        lambda: GrpcChannel(command.server, command.name),
        store,
        _read_vocabulary,
        limits=ClientLimits(models=command.models),
        notice=lambda words: print(f"fedlm client {command.name}: {words}", file=sys.stderr, flush=True),
    )
    client.run()
    return 0


def _read_vocabulary(content: bytes) -> Any:
    from simulations.datasets.tokenization import Tokenizer

    return Tokenizer(json.loads(content)).encode_batch
