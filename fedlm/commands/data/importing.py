"""`fedlm data import`: make a token store from a source of text."""

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fedlm.command_line.command import Command, Group
from fedlm.command_line.options import read_options
from fedlm.commands.data.describe import print_origin, print_skipped
from fedlm.commands.data.import_progress import ImportProgress
from fedlm.fl_core.number_ranges import Count
from fedlm.simulations.data.import_settings import ImportSettings
from fedlm.simulations.data.importing import ImportSummary, import_text
from fedlm.simulations.data.recommendation.importing import RECOMMENDATION, import_recommendation
from fedlm.simulations.data.recommendation.settings import RecommendationSettings
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.sources.registry import SOURCES, describe_source


def _options_of(source_type: type, settings_type: type) -> type:
    @dataclass(frozen=True)
    class Options:
        source: source_type  # type: ignore[valid-type]
        """What is read."""
        settings: settings_type  # type: ignore[valid-type]
        """What is made of it."""
        out: Path
        """Folder of the store to make."""
        overwrite: bool = False
        """Replace a token store that is already at --out."""
        workers: Count | None = None
        """Processes that read and tokenize. If not given, one for each CPU core."""

    Options.__doc__ = inspect.getdoc(source_type)
    return Options


def _import_from(name: str, options: type, make_store: Callable[..., ImportSummary], argv: list[str]) -> int:
    command: Any = read_options(options, argv, f"fedlm data import {name}")
    with ImportProgress(Console(stderr=True)) as progress:
        summary = make_store(
            command.source,
            command.out,
            command.settings,
            overwrite=command.overwrite,
            workers=command.workers,
            progress=progress.update,
        )
    _print_summary(summary, command.out)
    return 0


def _print_summary(summary: ImportSummary, out: Path) -> None:
    console = Console()
    title = f"{summary.header.source}: {summary.header.vocabulary_size:,} tokens in the vocabulary"
    table = Table("split", *(Column(name, justify="right") for name in ("clients", "examples", "tokens")), title=title)
    for name, split in summary.header.splits.items():
        table.add_row(name, f"{split.clients:,}", f"{split.examples:,}", f"{split.tokens:,}")
    console.print(table)
    if empty := [name for name, split in summary.header.splits.items() if not split.examples]:
        console.print(
            f"NO EXAMPLES in {' and '.join(empty)}: commands that need all three splits, as `fedlm simulate` does, "
            "will refuse this store. Import text of more users, or split them otherwise, by another --seed, or by "
            "what the input says.",
            soft_wrap=True,
            highlight=False,
        )
    print_origin(console, summary.header.vocabulary_origin)
    print_skipped(console, summary.header.skipped, summary.header.first_skipped)
    print(f"\nThe store is in {summary.path}. Next:\n\n  fedlm data describe {shlex.quote(str(out))}")


_PURPOSE = """Make a token store: users are split into train, heldout and test, a tokenizer is trained on the train
split, and every user's sentences are stored as token sequences. Where text has no users, each document stands for one.
If you stop it, the same command goes on where it was. The vocabulary may show what one user wrote, unless you make it
with --vocabulary-epsilon and --vocabulary-delta."""
_EXAMPLES = """For example:

  fedlm data import jsonl messages.jsonl --user author --text body --out data/messages"""


def _choice(
    name: str, source: type, settings: type, make_store: Callable[..., ImportSummary]
) -> tuple[str, Command | Group]:
    options = _options_of(source, settings)
    return describe_source(source), Command(options, partial(_import_from, name, options, make_store))


_CHOICES = {name: _choice(name, source, ImportSettings, partial(import_text, name)) for name, source in SOURCES.items()}
_CHOICES[RECOMMENDATION] = _choice(RECOMMENDATION, Interactions, RecommendationSettings, import_recommendation)
COMMAND = Group("fedlm data import", "source", _PURPOSE, _CHOICES, _EXAMPLES)
