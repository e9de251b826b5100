"""`fedlm account plot`: the mechanisms side by side, as a picture."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedlm.fl_core.number_ranges import Count, Positive
from fedlm.fl_core.privacy.accounting.delta import Delta


@dataclass(frozen=True, kw_only=True)
class PlotCommand:
    """Draw epsilon against rounds, and the error of the mechanisms at equal privacy."""

    rounds: Count
    """T, the number of rounds."""
    max_participations: Count | None = None
    """k, the most rounds in which a client takes part."""
    min_separation: Count = 1
    """b, the least difference between the numbers of two rounds of a client."""
    epsilon: Positive
    """Epsilon for which every mechanism gets its noise."""
    delta: Delta
    """Delta at which epsilon is stated."""
    out: Path
    """The picture, .png, .svg or .pdf."""


def draw(command: PlotCommand) -> int:
    """Draw the picture."""
    from fedlm.simulations.reporting.plots.privacy_plots import plot_mechanisms

    plot_mechanisms(**{field.name: getattr(command, field.name) for field in dataclasses.fields(command)})
    Console().print(f"plot: {command.out}", soft_wrap=True)
    return 0
