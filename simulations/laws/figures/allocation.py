"""What compute buys: the best model, batch, steps and loss, with the range that is as good within one percent."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.axes import (
    colour,
    head,
    label_axes,
    legend_below,
    line_style,
    logarithmic,
    short_number,
    titled,
)
from fedlm.simulations.laws.figures.searching import TrainingSearch, grid_of
from fedlm.simulations.laws.figures.tables import Progress, Table, no_progress
from fedlm.simulations.plot_style import new_figure

COMPUTE = "compute C (FLOPs)"
QUANTITIES = {
    "parameters": "parameters M",
    "batch_size": "batch size B (examples)",
    "steps": "steps T",
    "loss": "predicted loss (nats a token)",
}


def allocation_table(search: TrainingSearch, examples: Sequence[float], progress: Progress = no_progress) -> Table:
    """Tabulate the best trainings by compute, for each number of examples and the four epsilons of the paper."""
    return search.table(grid_of(search.computes, examples), progress)


def draw_allocation(table: Table) -> Figure:
    """Draw best parameters, batch, steps and loss by compute, a line an epsilon, for the first number of examples."""
    examples = table.values("examples")[0]
    table = table.where(examples=examples)
    figure = new_figure(5.8)
    for axes, (name, words) in zip(figure.subplots(2, 2, sharex=True).ravel(), QUANTITIES.items(), strict=True):
        _draw_lines(axes, table, name)
        label_axes(axes, COMPUTE if name in ("steps", "loss") else "", words)
    legend_below(figure, epsilon_lines(table))
    head(figure, f"Best training against compute, for N = {short_number(examples)} examples")
    return figure


def draw_allocation_by_examples(table: Table) -> Figure:
    """Draw best parameters, batch, steps and loss against compute, a row a number of examples, a line an epsilon."""
    every = table.values("examples")
    figure = new_figure(1.2 + 2.0 * len(every), width=9.4)
    panels = figure.subplots(len(every), 4, sharex=True, sharey="col", squeeze=False)
    for row, examples in zip(panels, every, strict=True):
        part = table.where(examples=examples)
        for axes, (name, words) in zip(row, QUANTITIES.items(), strict=True):
            _draw_lines(axes, part, name)
            label_axes(axes, COMPUTE if examples == every[-1] else "", words)
        titled(row[0], f"N = {short_number(examples)}")
    legend_below(figure, epsilon_lines(table))
    head(figure, "Best training against compute, by the number of examples N")
    return figure


def _draw_lines(axes: Axes, table: Table, name: str) -> None:
    for number, epsilon in enumerate(table.values("epsilon")):
        part = table.where(epsilon=epsilon)
        low, high = part[f"{name}_low"], part[f"{name}_high"]
        axes.fill_between(part["compute"], low, high, color=colour(number), alpha=0.15, linewidth=0)
        draw_faint_at_limits(axes, part, name, number)
    logarithmic(axes.xaxis)
    if name != "loss":
        logarithmic(axes.yaxis)


def draw_faint_at_limits(axes: Axes, table: Table, name: str, number: int) -> None:
    """Draw a line against compute, faintly where the best training lies at an end of the grid."""
    style = line_style(number, zorder=3)
    inside = np.where(table["limits"] == "", table[name], np.nan)
    axes.plot(table["compute"], table[name], **style | {"alpha": 0.4})
    axes.plot(table["compute"], inside, **style)


def epsilon_lines(table: Table) -> list[Line2D]:
    """Name the lines of a table's epsilons, for a legend."""
    return [
        Line2D([], [], label=f"epsilon = {epsilon:g}", **line_style(number))
        for number, epsilon in enumerate(table.values("epsilon"))
    ]
