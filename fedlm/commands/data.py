"""`fedlm data`: import text into a token store, describe a store, and export it."""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from fedlm.commands import data_export, data_sample
from fedlm.commands.import_progress import ImportProgress
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.data.describing.counts import count_store
from fedlm.simulations.data.describing.description import describe
from fedlm.simulations.data.importing import ImportSettings, ImportSummary, import_text
from fedlm.simulations.data.sources.registry import SOURCES, describe_source
from fedlm.simulations.data.store.token_store import TokenStore


@dataclass(frozen=True)
class DescribeOptions:
    """Describe a token store: clients, examples, tokens, and what was skipped when it was imported."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Directory of the store."""
    json: bool = False
    """Print one JSON document instead of tables."""
    plot: Path | None = None
    """Draw clients, lengths and coverage into this file, a PNG."""

    def __post_init__(self) -> None:
        if self.plot is not None and self.plot.suffix.lower() != ".png":
            raise ConfigurationError(f"plot is {str(self.plot)!r}, but must be a file name that ends in .png")


def main(argv: list[str]) -> int:
    """Run `fedlm data` with the words after it.

    Returns:
      The exit status: 0, or 2 where a word is missing.

    Raises:
      UserError: a word is unknown, a store is missing or damaged, or the destination may not be written.
      SystemExit: after printing help, or an option's error (status 2).
    """
    return _dispatch(
        "fedlm data",
        "Text of many users, as token stores that training reads.",
        {
            "import": ("make a token store from a source of text", _import),
            "describe": ("show what is in a token store", _describe),
            "sample": ("show some clients' examples as text", data_sample.main),
            "export": ("write a token store in the form of another program", data_export.main),
        },
        argv,
    )


def _dispatch(
    prog: str, purpose: str, commands: dict[str, tuple[str, Callable[[list[str]], int]]], argv: list[str]
) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, commands))
        lines = [f"usage: {prog} {{{','.join(commands)}}} ...", "", purpose, ""]
        lines += [f"  {name:<{width}}  {text}" for name, (text, _) in commands.items()]
        lines += ["", f"Options and an explanation of each: {prog} {next(iter(commands))} --help"]
        print("\n".join(lines))
        return 0 if argv else 2
    if argv[0] not in commands:
        raise ConfigurationError(
            f"{prog}: found {argv[0]!r}, expected one of: {', '.join(commands)}. Type {prog} --help."
        )
    return commands[argv[0]][1](argv[1:])


def _import(argv: list[str]) -> int:
    return _dispatch(
        "fedlm data import",
        "Make a token store: users are split into train, heldout and test, a tokenizer is trained on the train split,\n"
        "and every user's sentences are stored as token sequences. Where text has no users, each document stands for\n"
        "one. Stopped, the same command goes on where it was.\n"
        "For example:\n\n"
        "  fedlm data import jsonl messages.jsonl --user author --text body --out data/messages",
        {name: (describe_source(source), partial(_import_from, name)) for name, source in SOURCES.items()},
        argv,
    )


def _import_from(name: str, argv: list[str]) -> int:
    source_type = SOURCES[name]

    @dataclass(frozen=True)
    class Command:
        source: tyro.conf.OmitArgPrefixes[source_type]  # type: ignore[valid-type]
        """What is read."""
        settings: tyro.conf.OmitArgPrefixes[ImportSettings]
        """What is made of it."""
        out: Path
        """Folder of the store to make."""
        overwrite: bool = False
        """Replace a token store that is already at --out."""
        workers: int | None = None
        """Processes that read and tokenize; one for each CPU core where it is not given."""

    command = tyro.cli(Command, args=argv, prog=f"fedlm data import {name}", description=inspect.getdoc(source_type))
    with ImportProgress(Console(stderr=True)) as progress:
        summary = import_text(
            name,
            command.source,
            command.out,
            command.settings,
            command.overwrite,
            command.workers,
            progress.update,
        )
    _print_summary(summary, command.out)
    return 0


def _describe(argv: list[str]) -> int:
    options = tyro.cli(DescribeOptions, args=argv, prog="fedlm data describe")
    store = TokenStore.open(options.directory)
    counts = count_store(store)
    description = describe(store, counts)
    if options.plot is not None:
        from fedlm.simulations.data.describing.plots import write_plot  # which imports matplotlib

        write_plot(options.plot, store, counts)
    if options.json:
        json.dump(description, sys.stdout, indent=1)
        print()
    else:
        _print_description(description)
        if options.plot is not None:
            print(f"The picture is in {options.plot}.")
    return 0


def _print_summary(summary: ImportSummary, out: Path) -> None:
    console = Console()
    table = Table(title=f"{summary.header.source}: {summary.header.vocabulary_size:,} tokens in the vocabulary")
    table.add_column("split")
    for column in ("clients", "examples", "tokens"):
        table.add_column(column, justify="right")
    for name, split in summary.header.splits.items():
        table.add_row(name, f"{split.clients:,}", f"{split.examples:,}", f"{split.tokens:,}")
    console.print(table)
    _print_skipped(console, summary.header.skipped, summary.header.first_skipped)
    print(f"\nThe store is in {summary.path}. Next:\n\n  fedlm data describe {out}")


def _print_skipped(console: Console, skipped: dict[str, int], first: dict[str, str]) -> None:
    for reason, count in skipped.items():
        place = f" (the first: {first[reason]})" if reason in first else ""
        console.print(f"left out: {reason}, {count:,}{place}", soft_wrap=True, markup=False, highlight=False)


def _print_description(description: dict[str, Any]) -> None:
    console = Console()
    splits = description["splits"]
    table = Table(title=f"{description['path']} ({description['source']})")
    table.add_column("")
    for name in splits:
        table.add_column(name, justify="right")
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
    _print_skipped(console, description["skipped"], description["first_skipped"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
