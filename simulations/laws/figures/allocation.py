"""What compute buys: the best model, batch, steps and loss, and where more of it stops to pay."""

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlm.simulations.laws.figures.axes import (
    REFERENCE,
    colour,
    head,
    key,
    label_axes,
    legend_below,
    legend_in,
    line_style,
    logarithmic,
    shade,
    short_number,
    size_words,
    titled,
)
from fedlm.simulations.laws.figures.search import EXAMPLES, TrainingSearch, grid_of
from fedlm.simulations.laws.figures.table import Progress, Table, no_progress
from fedlm.simulations.laws.planning.configurations import saturates_at
from fedlm.simulations.plot_style import INK, new_figure

CHINCHILLA = 20.0
"""Tokens a parameter that are best without privacy (Hoffmann et al. 2022)."""
COMPUTE = "compute C (FLOPs)"
QUANTITIES = {
    "parameters": "parameters M",
    "batch_size": "batch size B (examples)",
    "steps": "steps T",
    "loss": "predicted loss (nats a token)",
}


def draw_allocation(table: Table) -> Figure:
    """Draw best parameters, batch, steps and loss by compute, a line an epsilon, for the first number of examples."""
    examples = table.values("examples")[0]
    table = table.where(examples=examples)
    figure = new_figure(5.8)
    for axes, (name, words) in zip(figure.subplots(2, 2, sharex=True).ravel(), QUANTITIES.items(), strict=True):
        _draw_lines(axes, table, name)
        label_axes(axes, COMPUTE if name in ("steps", "loss") else "", words)
    legend_below(figure, _epsilon_keys(table))
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
    legend_below(figure, _epsilon_keys(table))
    head(figure, "Best training against compute, by the number of examples N")
    return figure


def _draw_lines(axes: Axes, table: Table, name: str) -> None:
    for number, epsilon in enumerate(table.values("epsilon")):
        part = table.where(epsilon=epsilon)
        shade(axes, part, "compute", name, number=number)
        _draw_faint_at_limits(axes, part, name, number)
    logarithmic(axes.xaxis)
    if name != "loss":
        logarithmic(axes.yaxis)


def _draw_faint_at_limits(axes: Axes, table: Table, name: str, number: int) -> None:
    """Draw a line against compute, faintly where the best training lies at an end of the grid."""
    style = line_style(number, zorder=3)
    inside = np.where(table["limits"] == "", table[name], np.nan)
    axes.plot(table["compute"], table[name], **style | {"alpha": 0.4})
    axes.plot(table["compute"], inside, **style)


def _epsilon_keys(table: Table) -> list[Artist]:
    return [
        key(f"epsilon = {epsilon:g}", **line_style(number)) for number, epsilon in enumerate(table.values("epsilon"))
    ]


def saturation_table(search: TrainingSearch, progress: Progress = no_progress) -> Table:
    """Tabulate the best trainings by compute for what the panels show, see `draw_saturation`."""
    computes = search.computes
    panels = {"a": (EXAMPLES, (1.0,)), "b": (EXAMPLES, (8.0,)), "c": ((1e7,), (1.0, 10.0, 100.0, 1000.0))}
    points = [(panel, budget) for panel, (n, e) in panels.items() for budget in grid_of(computes, n, e)]
    table = search.table([budget for _, budget in points], progress)
    panel = np.array([panel for panel, _ in points], object)
    marks = np.zeros(len(table))
    for start in range(0, len(table), len(computes)):
        line = slice(start, start + len(computes))
        if (place := saturates_at(table["loss"][line])) is not None:
            marks[start + place] = 1.0
    return Table({"panel": panel, **table.columns, "saturates": marks})


def draw_saturation(table: Table) -> Figure:
    """Draw best loss against compute in two panels of an epsilon each, and tokens a parameter in a third.

    Args:
      table: rows of best trainings, with a `panel`: `a` and `b`, of one epsilon and several numbers of examples, `c` of
        one number of examples and several epsilons. `saturates` marks the least compute of a line whose loss is within
        one percent of the best of all.
    """
    figure = new_figure(6.0)
    panels = figure.subplots(2, 2).ravel()
    for axes, letter in zip(panels, "ab", strict=False):
        part = table.where(panel=letter)
        for number, examples in enumerate(part.values("examples")):
            _draw_saturating(axes, part.where(examples=examples), number)
        logarithmic(axes.xaxis)
        label_axes(axes, COMPUTE, QUANTITIES["loss"])
        titled(axes, f"({letter}) loss at epsilon = {part['epsilon'][0]:g}")
    ratio = table.where(panel="c")
    _draw_tokens(panels[2], ratio)
    titled(panels[2], f"(c) tokens a parameter, N = {short_number(ratio['examples'][0])}")
    _draw_keys(panels[3], table.where(panel="a").values("examples"), ratio.values("epsilon"))
    head(figure, "Where compute saturates, and tokens a parameter")
    return figure


def _draw_saturating(axes: Axes, table: Table, number: int) -> None:
    _draw_faint_at_limits(axes, table, "loss", number)
    shade(axes, table, "compute", "loss", number=number)
    for row in table.where(saturates=1.0).rows():
        at = (row["compute"], row["loss"])
        axes.plot(*at, "o", ms=7, mfc="none", mec=colour(number), mew=1.5, zorder=5)
        words = size_words(float(f"{row['parameters']:.2g}"))
        if words not in [text.get_text() for text in axes.texts]:
            place = (-3, 6)
            axes.annotate(words, at, xytext=place, textcoords="offset points", fontsize=7.5, color=INK, ha="right")


def _draw_tokens(axes: Axes, table: Table) -> None:
    for number, epsilon in enumerate(table.values("epsilon")):
        part = table.where(epsilon=epsilon)
        _draw_faint_at_limits(axes, part, "tokens_per_parameter", number)
    axes.axhline(CHINCHILLA, **REFERENCE)
    logarithmic(axes.xaxis)
    logarithmic(axes.yaxis)
    label_axes(axes, COMPUTE, "tokens a parameter")


def _draw_keys(axes: Axes, examples: list[float], epsilons: list[float]) -> None:
    """Explain the lines where the fourth panel would be."""
    axes.axis("off")
    sizes = [key(f"N = {short_number(one)}", **line_style(place)) for place, one in enumerate(examples)]
    sizes.append(key("saturated, with its M", marker="o", ms=7, mfc="none", mec=INK, mew=1.5, linestyle=""))
    budgets = [key(f"epsilon = {one:g}", **line_style(place)) for place, one in enumerate(epsilons)]
    budgets.append(key("20, best without privacy", **REFERENCE))
    for place, title, lines in ((1.0, "(a), (b)", sizes), (0.42, "(c)", budgets)):
        axes.add_artist(legend_in(axes, lines, title=title, loc="upper left", bbox_to_anchor=(0.0, place)))
