"""Where compute stops to pay: best loss against compute until it is flat, and how many tokens a parameter then sees."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.configurations import NEAR
from fedlm.simulations.laws.figures.allocation import COMPUTE, QUANTITIES, draw_faint_at_limits
from fedlm.simulations.laws.figures.axes import (
    REFERENCE,
    colour,
    head,
    label_axes,
    line_style,
    logarithmic,
    short_number,
    size_words,
    titled,
)
from fedlm.simulations.laws.figures.searching import EXAMPLES, TrainingSearch, grid_of
from fedlm.simulations.laws.figures.tables import Progress, Table, no_progress
from fedlm.simulations.plot_style import INK, new_figure

CHINCHILLA = 20.0
"""Tokens a parameter that are best without privacy (Hoffmann et al. 2022)."""


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
        marks[line] = mark_saturation(table["loss"][line])
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
    draw_faint_at_limits(axes, table, "loss", number)
    axes.fill_between(
        table["compute"], table["loss_low"], table["loss_high"], color=colour(number), alpha=0.15, linewidth=0
    )
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
        draw_faint_at_limits(axes, part, "tokens_per_parameter", number)
    axes.axhline(CHINCHILLA, **REFERENCE)
    logarithmic(axes.xaxis)
    logarithmic(axes.yaxis)
    label_axes(axes, COMPUTE, "tokens a parameter")


def _draw_keys(axes: Axes, examples: list[float], epsilons: list[float]) -> None:
    """Explain the lines where the fourth panel would be."""
    axes.axis("off")
    ring = Line2D([], [], marker="o", ms=7, mfc="none", mec=INK, mew=1.5, linestyle="")
    sizes = [
        Line2D([], [], label=f"N = {short_number(one)}", **line_style(place)) for place, one in enumerate(examples)
    ]
    ring.set_label("saturated, with its M")
    budgets = [Line2D([], [], label=f"epsilon = {one:g}", **line_style(place)) for place, one in enumerate(epsilons)]
    budgets.append(Line2D([], [], label="20, best without privacy", **REFERENCE))
    for place, title, lines in ((1.0, "(a), (b)", [*sizes, ring]), (0.42, "(c)", budgets)):
        legend = axes.legend(
            handles=lines, title=title, loc="upper left", bbox_to_anchor=(0.0, place), frameon=False, fontsize=8.5
        )
        legend.get_title().set(color=INK, fontsize=8.5)
        for text in legend.get_texts():
            text.set_color(INK)
        axes.add_artist(legend)


def mark_saturation(loss: np.ndarray, near: float = NEAR) -> np.ndarray:
    """Mark with 1 the first loss that is as good as the lowest of all, the others with 0.

    Args:
      loss: float64 [rows], by ascending compute; NaN where none is known.
      near: relative loss above the lowest that is as good (McKenna et al. 2025, table 2: 1 %).
    """
    marks = np.zeros(len(loss))
    if np.isfinite(loss).any():
        marks[int(np.argmax(loss <= (1 + near) * np.nanmin(loss)))] = 1.0
    return marks
