"""`fedlm data sample`: look at some clients' examples as text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count, Seed
from fedlm.fl_core.text_encodings import printable
from fedlm.simulations.data.describing.sampling import ClientSample, sample_clients
from fedlm.simulations.data.store.token_store import TokenStore


@dataclass(frozen=True)
class SampleCommand:
    """Show some clients' examples as text, decoded from their tokens, with [OOV] where a word was unknown."""

    directory: tyro.conf.Positional[Path]
    """Directory of the store."""
    split: Literal["train", "heldout", "test"] = "train"
    """The split to look at."""
    clients: Annotated[Count, OnlyWith("client", None)] = 3
    """How many clients to choose."""
    examples: Count = 5
    """How many examples to show of each, the first ones."""
    seed: Annotated[Seed, OnlyWith("client", None)] = 0
    """Another seed chooses other clients."""
    client: str | None = None
    """Show the client with this id alone."""
    json: bool = False
    """Print one JSON document instead of text."""


def main(argv: list[str]) -> int:
    """Run `fedlm data sample`."""
    command = read_options(SampleCommand, argv, "fedlm data sample")
    store = TokenStore.open(command.directory)
    samples = sample_clients(
        store, command.split, command.clients, command.examples, seed=command.seed, client_id=command.client
    )
    if command.json:
        clients = [sample._asdict() for sample in samples]
        print(json_text({"path": str(store.path), "split": command.split, "clients": clients}, indent=1))
    else:
        print("\n\n".join(_block(sample) for sample in samples))
    return 0


def _block(sample: ClientSample) -> str:
    count = f"{sample.num_examples:,} example{'s' if sample.num_examples != 1 else ''}"
    left = sample.num_examples - len(sample.examples)
    lines = [f"client {printable(sample.client_id)}: {count}"]
    lines += [f"  {number}. {printable(text)}" for number, text in enumerate(sample.examples, start=1)]
    return "\n".join([*lines, f"  ... and {left:,} more"] if left else lines)


COMMAND = Command(SampleCommand, main)
