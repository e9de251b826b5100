"""`fedlm laws report`: one page about a file of laws."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.progress import EvaluationProgress


@dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """Write a page about scaling laws: their pictures, table 2, coefficients and errors.

    It is one HTML file that needs no other. It takes some minutes.
    """

    laws: tyro.conf.Positional[Path]
    """File of laws, as `fedlm laws fit` makes it."""
    out: Path
    """The file, whose name ends in .html."""
    measurements: Path | None = None
    """The measurements that the laws were fitted to, or the folder of the grid's results; without them the
    pictures that show them are left out."""


def main(argv: list[str]) -> int:
    """Run `fedlm laws report`."""
    command = read_options(ReportCommand, argv, "fedlm laws report")
    from fedlm.simulations.laws.figures.figure import evidence_of
    from fedlm.simulations.laws.laws_file import read_laws
    from fedlm.simulations.laws.page import write_laws_report

    laws = read_laws(command.laws)
    evidence = evidence_of(laws, command.measurements)
    line = shlex.join(["fedlm", "laws", "report", *argv])
    path = write_laws_report(laws, evidence, command.out, line, progress=_progress)
    Console().print(f"report: {path}", soft_wrap=True, markup=False, highlight=False)
    return 0


@contextmanager
def _progress(part: str) -> Iterator[Callable[[int, int], None]]:
    with EvaluationProgress(part, "points") as bar:
        yield bar.update


COMMAND = Command(ReportCommand, main)
