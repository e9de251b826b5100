"""`fedlm data export`: write a token store in the form of another program."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.commands.data.import_progress import ImportProgress
from fedlm.simulations.data.exports.exporting import ExportSummary, export_store
from fedlm.simulations.data.exports.registry import EXPORTS, describe_export
from fedlm.simulations.data.store.token_store import TokenStore

_Format = tyro.extras.literal_type_from_choices(list(EXPORTS))
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write a token store in the form of another program."""

    directory: tyro.conf.Positional[Path]
    """Directory of the store."""
    format: _Format  # type: ignore[valid-type]
    """The form to write."""
    out: Path
    """File to make. With fedjax, a folder."""
    overwrite: bool = False
    """Replace what exists at --out."""


ExportCommand.__doc__ = "\n\n".join(
    [
        str(ExportCommand.__doc__),
        *(f"{name}: {describe_export(export).partition(': ')[2]}" for name, export in EXPORTS.items()),
    ]
)


def main(argv: list[str]) -> int:
    """Run `fedlm data export`."""
    command = read_options(ExportCommand, argv, "fedlm data export")
    store = TokenStore.open(command.directory)
    try:
        with ImportProgress(Console(stderr=True)) as progress:
            summary = export_store(
                store,
                command.format,
                command.out,
                overwrite=command.overwrite,
                progress=progress.update,
            )
    except KeyboardInterrupt:
        print(f"\nfedlm: interrupted; {command.out} is as it was, the same command begins anew", file=sys.stderr)
        return _INTERRUPTED
    _print_summary(summary)
    return 0


def _print_summary(summary: ExportSummary) -> None:
    columns = (Column(name, justify="right") for name in ("clients", "examples"))
    table = Table("split", *columns, title=f"{summary.path} ({decimal(summary.bytes)})")
    for split, clients in summary.clients.items():
        table.add_row(split, f"{clients:,}", f"{summary.examples[split]:,}")
    Console().print(table)
    print("\nRead it in Python:\n\n" + "\n".join(f"  {line}" for line in summary.reading_lines))


COMMAND = Command(ExportCommand, main)
