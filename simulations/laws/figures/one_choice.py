"""What a wrong choice costs: loss against steps, parameters and batch, each alone, the others at their best."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.allocation import QUANTITIES
from fedlm.simulations.laws.figures.axes import head, label_axes, line_style, logarithmic, short_number
from fedlm.simulations.laws.figures.searching import (
    DELTA,
    EPSILONS,
    EXAMPLES,
    TrainingSearch,
    shown_computes,
)
from fedlm.simulations.laws.figures.tables import Progress, Table, no_progress, table_of
from fedlm.simulations.laws.plan import Budget
from fedlm.simulations.plot_style import INK, new_figure

CHOICES = ("steps", "parameters", "batch_size")
BUDGETS = {"epsilon": "epsilon", "examples": "examples N", "compute": "compute C"}


def one_choice_table(search: TrainingSearch, progress: Progress = no_progress) -> Table:
    """Tabulate the least loss for each value of one choice, of one budget varied from N = 1e7, epsilon 4 and a compute.

    Steps are rounded to quarter powers of two.
    """
    surface = search.surface
    computes = shown_computes(surface)
    middle = Budget(1e7, 4.0, DELTA, computes[1])
    varied = {"epsilon": EPSILONS, "examples": EXAMPLES, "compute": computes}
    lines = [(name, middle._replace(**{name: amount})) for name, amounts in varied.items() for amount in amounts]
    rows = []
    for done, (name, budget) in enumerate(lines, 1):
        found = search.candidates(budget)
        for choice in CHOICES:
            values = getattr(found, choice)
            values = 2 ** (np.round(4 * np.log2(values)) / 4) if choice == "steps" else values
            loss = np.where(np.isnan(found.loss), np.inf, found.loss)
            for value in np.unique(values):
                least = loss[values == value].min()
                if np.isfinite(least):
                    rows.append({"varied": name, "choice": choice, **budget._asdict(), "value": value, "loss": least})
        progress(done, len(lines))
    return table_of(rows)


def draw_one_choice(table: Table) -> Figure:
    """Draw loss in nine panels: a row a choice, a column a budget of which there are several, the others fixed.

    Args:
      table: rows with `choice` and its `value`, `varied` and what the budget is there, and the best `loss`.
    """
    figure = new_figure(7.4, width=8.4)
    panels = figure.subplots(len(CHOICES), len(BUDGETS), sharex="row", sharey=True)
    for row, choice in zip(panels, CHOICES, strict=True):
        for axes, (budget, words) in zip(row, BUDGETS.items(), strict=True):
            part = table.where(choice=choice, varied=budget)
            handles = []
            for number, amount in enumerate(part.values(budget)):
                line = part.where(**{budget: amount})
                style = line_style(number)
                axes.plot(line["value"], line["loss"], zorder=3, **style)
                handles.append(Line2D([], [], label=short_number(amount), **style))
            logarithmic(axes.xaxis)
            label_axes(axes, QUANTITIES[choice], QUANTITIES["loss"] if budget == "epsilon" else "")
            if choice == CHOICES[0]:
                legend = axes.legend(
                    handles=handles,
                    title=words,
                    loc="lower center",
                    bbox_to_anchor=(0.5, 1.01),
                    ncols=2,
                    frameon=False,
                    fontsize=8,
                )
                legend.get_title().set(color=INK, fontsize=8.5)
    head(figure, "Loss against one choice, with the others at their best")
    return figure
