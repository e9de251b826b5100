"""`fedlm laws table2`: the compute that saturates each budget of people and privacy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.progress import EvaluationProgress
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.number_ranges import Positive, PositiveOrInfinite


@dataclass(frozen=True, kw_only=True)
class Table2Command:
    """List the compute beyond which more gains less than 1 %, for numbers of examples and epsilons.

    With it comes the best training at that compute: model, steps, batch and noise (McKenna et al. 2025, table 2).

    Epsilons are at delta 1e-8, for one example added or removed, with Poisson sampling; the noise is the accountant's.
    Without a file of laws the command prints the published table, with the noise that our accountant finds for its
    rows.
    """

    laws: tyro.conf.Positional[Path | None] = None
    """File of laws, as `fedlm laws fit` makes it."""
    examples: tuple[Positive, ...] = (1e5, 1e6, 1e7, 1e8, 1e9)
    """Numbers of examples."""
    epsilons: tuple[PositiveOrInfinite, ...] = (1.0, 4.0, 16.0, 64.0)
    """Epsilons."""
    format: Literal["table", "csv", "json"] = "table"
    """How it is printed."""


_STATEMENT = (
    "Each epsilon is at delta 1e-8, of a training that would be run with the noise beside it, in all its digits "
    "(--format json); unit: one training example, in all steps; adjacency: add-or-remove; if each example is in each "
    "batch independently and in secret, and only the model is published. What the vocabulary tells is not counted."
)


def main(argv: list[str]) -> int:
    """Run `fedlm laws table2`."""
    command = read_options(Table2Command, argv, "fedlm laws table2")
    from fedlm.simulations.laws.figures.figure import read_evidence
    from fedlm.simulations.laws.figures.table2 import SHOWN, published_table, saturating_table, shown_cell

    evidence = read_evidence(command.laws, None)
    with EvaluationProgress("table 2", "budgets") as progress:
        if command.laws is None:
            table = published_table(command.examples, command.epsilons, progress.update)
        else:
            table = saturating_table(evidence.searching(), command.examples, command.epsilons, progress.update)
    if not len(table):
        raise ConfigurationError("none of these examples and epsilons is within the laws' grid; ask for others")
    if command.format != "table":
        print(table.as_csv() if command.format == "csv" else table.as_json(), end="")
        return 0
    shown = {name: words for name, words in SHOWN.items() if name in table.columns}
    printed = Table(*(Column(words, justify="right") for words in shown.values()), box=SIMPLE_HEAD)
    for row in table.rows():
        printed.add_row(*(shown_cell(row[name]) for name in shown))
    console = Console()
    console.print(printed)
    console.print(_STATEMENT, soft_wrap=True, highlight=False)
    return 0


COMMAND = Command(Table2Command, main)
