"""`fedlm data export`: write a token store in the form of another program."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedlm.commands.import_progress import ImportProgress
from fedlm.commands.options import settings_of
from fedlm.simulations.data.exports.base import ExportSettings
from fedlm.simulations.data.exports.exporting import ExportSummary, export_store
from fedlm.simulations.data.exports.registry import EXPORTS, describe_export
from fedlm.simulations.data.store.token_store import TokenStore

_Format = tyro.extras.literal_type_from_choices(list(EXPORTS))
_DESCRIPTION = "\n\n".join(
    [
        "Write a token store in the form of another program.",
        *(f"{name}: {describe_export(export).partition(': ')[2]}" for name, export in EXPORTS.items()),
    ]
)
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ExportSettings):
    """What is written where."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Directory of the store."""
    format: _Format  # type: ignore[valid-type]
    """The form to write."""
    out: Path
    """File to make; with fedjax, folder."""
    overwrite: bool = False
    """Replace what is already at --out."""


def main(argv: list[str]) -> int:
    """Run `fedlm data export` with the words after it.

    Returns:
      The exit status: 0, or 130 when interrupted.

    Raises:
      UserError: an option is wrong, the store is missing or damaged, or the destination may not be written.
      SystemExit: after printing help, or an option's error (status 2).
    """
    options = tyro.cli(ExportOptions, args=argv, prog="fedlm data export", description=_DESCRIPTION)
    store = TokenStore.open(options.directory)
    settings = settings_of(options, ExportSettings)
    try:
        with ImportProgress(Console(stderr=True)) as progress:
            summary = export_store(store, options.format, options.out, settings, options.overwrite, progress.update)
    except KeyboardInterrupt:
        print(f"\nfedlm: interrupted; {options.out} is as it was, the same command begins anew", file=sys.stderr)
        return _INTERRUPTED
    _print_summary(summary)
    return 0


def _print_summary(summary: ExportSummary) -> None:
    table = Table(title=f"{summary.path} ({decimal(summary.bytes)})")
    table.add_column("split")
    for column in ("clients", "examples"):
        table.add_column(column, justify="right")
    for split, clients in summary.clients.items():
        table.add_row(split, f"{clients:,}", f"{summary.examples[split]:,}")
    Console().print(table)
    print("\nRead it in Python:\n\n" + "\n".join(f"  {line}" for line in summary.reading_lines))
