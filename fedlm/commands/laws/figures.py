"""`fedlm laws figures`: draw pictures of scaling laws."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.progress import EvaluationProgress
from fedlm.fl_core.errors import ConfigurationError

if TYPE_CHECKING:
    from fedlm.simulations.laws.figures.figure import Evidence, LawFigure


@dataclass(frozen=True, kw_only=True)
class FiguresCommand:
    """Draw a picture of scaling laws, or all that there is something for.

    figure4 and figure15 are of accounting alone and need no file of laws.
    """

    laws: tyro.conf.Positional[Path | None] = None
    """File of laws, as `fedlm laws fit` makes it."""
    figure: str
    """Which figure, or all. Figures of McKenna et al. 2025: figure1, figure3, figure4, figure5, figure6, figure13
    and figure15. kaplan: the power laws of Kaplan et al. 2020. vaultgemma: the parabolas of the learning rate."""
    out: Path
    """File of the picture, a PNG; with --figure all, a folder."""
    measurements: Path | None = None
    """The measurements that the laws were fitted to, or the folder of the grid's results, for
    kaplan and vaultgemma."""
    data: Literal["csv", "json"] | None = None
    """Write the numbers of each picture beside it, under the same name."""


def main(argv: list[str]) -> int:
    """Run `fedlm laws figures`."""
    command = read_options(FiguresCommand, argv, "fedlm laws figures")
    from fedlm.simulations.laws.figures.figure import check_picture_name, read_evidence
    from fedlm.simulations.laws.figures.registry import FIGURES

    if command.figure not in (*FIGURES, "all"):
        raise ConfigurationError(f"unknown figure {command.figure!r}; choose from {', '.join(FIGURES)}, or all")
    evidence = read_evidence(command.laws, command.measurements)
    if command.figure == "all":
        return _draw_all(command, list(FIGURES.values()), evidence)
    check_picture_name(command.out)
    _draw(command, FIGURES[command.figure], evidence, command.out)
    return 0


def _draw_all(command: FiguresCommand, figures: "list[LawFigure]", evidence: "Evidence") -> int:
    console = Console()
    for figure in figures:
        try:
            _draw(command, figure, evidence, command.out / f"{figure.name}.png")
        except ConfigurationError as error:
            console.print(f"left out: {error}", soft_wrap=True, markup=False, highlight=False)
    return 0


def _draw(command: FiguresCommand, figure: "LawFigure", evidence: "Evidence", out: Path) -> None:
    from fedlm.simulations.laws.figures.figure import write_law_figure

    with EvaluationProgress(figure.name, "points") as progress:
        table = figure.table(evidence, progress.update)
    for path in write_law_figure(figure, table, out, command.data):
        Console().print(f"{figure.name}: {path}", soft_wrap=True, markup=False, highlight=False)


COMMAND = Command(FiguresCommand, main)
