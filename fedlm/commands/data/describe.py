"""`fedlm data describe`: show what is in a token store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.simulations.data.describing.description import describe
from fedlm.simulations.data.store.token_store import TokenStore


@dataclass(frozen=True)
class DescribeCommand:
    """Describe a token store: clients, examples, tokens, and what was skipped when it was imported."""

    directory: tyro.conf.Positional[Path]
    """Directory of the store."""
    json: bool = False
    """Print one JSON document instead of tables."""


def main(argv: list[str]) -> int:
    """Run `fedlm data describe`."""
    command = read_options(DescribeCommand, argv, "fedlm data describe")
    description = describe(TokenStore.open(command.directory))
    if command.json:
        print(json_text(description, indent=1))
    else:
        _print_description(description)
    return 0


def _print_description(description: dict[str, Any]) -> None:
    console = Console()
    splits = description["splits"]
    what = ", prompts with completions" if description["completions"] else ""
    what += ", one sequence of items a user, in heldout and test with the held-out one" * description["item_sequences"]
    title = f"{description['path']} ({description['source']}{what})"
    table = Table("", *(Column(name, justify="right") for name in splits), title=title)
    for row in ("clients", "examples", "tokens"):
        table.add_row(row, *(f"{split[row]:,}" for split in splits.values()))
    for row in ("examples_per_client", "tokens_per_example"):
        table.add_section()
        for statistic in next(iter(splits.values()))[row]:
            cells = (_number(split[row][statistic]) for split in splits.values())
            table.add_row(f"{row.replace('_', ' ')}: {statistic}", *cells)
    table.add_section()
    for row, label in (("truncated_share_by_length", "cut at length"), ("coverage_by_rank", "covered by the first")):
        for number in next(iter(splits.values()))[row]:
            table.add_row(f"{label} {int(number):,}", *(_percent(split[row][number]) for split in splits.values()))
        table.add_section()
    for row, label in (("coverage", "covered by the vocabulary"), ("oov_share", "out of vocabulary")):
        table.add_row(label, *(_percent(split[row]) for split in splits.values()))
    table.add_row("vocabulary used", *(f"{split['vocabulary_used']:,}" for split in splits.values()))
    console.print(table)
    console.print(
        f"vocabulary: {description['vocabulary_size']:,} tokens, fingerprint {description['fingerprint'][:16]}"
    )
    print_origin(console, VocabularyOrigin.from_json(description["vocabulary_origin"]))
    print_skipped(console, description["skipped"], description["first_skipped"])


def print_origin(console: Console, origin: VocabularyOrigin) -> None:
    """Say where a vocabulary comes from, and whether guarantees for models cover it."""
    console.print(f"{origin.sentence()}.", soft_wrap=True, markup=False, highlight=False)


def print_skipped(console: Console, skipped: dict[str, int], first: dict[str, str]) -> None:
    """Say what an import left out: how often for each reason, and where first."""
    for reason, count in skipped.items():
        place = f" (the first: {first[reason]})" if reason in first else ""
        console.print(f"left out: {reason}, {count:,}{place}", soft_wrap=True, markup=False, highlight=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


COMMAND = Command(DescribeCommand, main)
