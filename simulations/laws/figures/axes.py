"""Axes as all pictures of scaling laws have them: logarithmic ones with few ticks, titles, and one legend a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.table import Table
from fedlm.simulations.plot_style import FAMILIES, GRID, INK, MARKERS, MUTED, style_frame

DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
REFERENCE: dict[str, Any] = {"color": MUTED, "linestyle": (0, (2, 2)), "linewidth": 1.2}
"""Of a line for comparison."""
_MOST_TICKS = 7


def colour(number: int) -> str:
    """Choose the colour of a line by its number."""
    return FAMILIES[number % len(FAMILIES)]


def line_style(number: int, **more: Any) -> dict[str, Any]:
    """Choose how a line is drawn by its number: colour and dash, for those who tell no colours apart."""
    return {"color": colour(number), "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.7} | more


def point_style(number: int, **more: Any) -> dict[str, Any]:
    """Choose how points are drawn by their number: colour and marker."""
    marker = MARKERS[number % len(MARKERS)]
    return {"color": colour(number), "marker": marker, "linestyle": "", "markersize": 4.0} | more


def head(figure: Figure, title: str) -> None:
    """Write a picture's title."""
    figure.suptitle(title, x=0.01, ha="left", color=INK, weight="bold", fontsize=11)


def titled(axes: Axes, text: str) -> None:
    """Write a panel's title."""
    axes.set_title(text, loc="left", color=INK, fontsize=9.5)


def label_axes(axes: Axes, across: str, up: str) -> None:
    """Give axes the look of all plots, and say what is across and what is up."""
    style_frame(axes)
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(across, color=INK, fontsize=8.5)
    axes.set_ylabel(up, color=INK, fontsize=8.5)


def powers_of_two(axis: Axis) -> None:
    """Write an axis of logarithms to base 2 as powers, at a few whole ones."""
    low, high = axis.get_view_interval()
    step = max(1, round((high - low) / _MOST_TICKS))
    ticks = range(int(np.ceil(low / step)) * step, int(np.floor(high)) + 1, step)
    axis.set_ticks(list(ticks), [f"$2^{{{tick}}}$" for tick in ticks])


def logarithmic(axis: Axis) -> None:
    """Make an axis logarithmic, with ticks at powers of ten, or at 1, 2 and 5 of these where it spans few of them."""
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    plain = low >= 1e-2 and high < 1e3  # numbers with powers of ten take more room
    subs = (1.0,) if decades > (2.5 if plain else 1.8) else (1.0, 2.0, 5.0) if plain else (1.0, 3.0)
    axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=_MOST_TICKS))
    if decades < 0.7:
        axis.set_major_locator(ticker.MaxNLocator(5 if plain else 3))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short_number(value)))
    axis.set_minor_locator(ticker.NullLocator())


def short_number(value: float) -> str:
    """Write a number shortly: as it is from a hundredth to a thousand, else with a power of ten."""
    if value == 0 or 1e-2 <= abs(value) < 1e3:
        return f"{value:,.4g}"
    exponent = int(np.floor(np.log10(abs(value)) + 1e-9))
    digits = f"{value / 10.0**exponent:.3g}"
    return f"$10^{{{exponent}}}$" if digits == "1" else f"${digits}\\times10^{{{exponent}}}$"


def size_words(parameters: float) -> str:
    """Name a model by its parameters, in three digits."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g} {sign}"
    return f"{parameters:g}"


def ratio_words(ratio: float) -> str:
    """Name a noise-batch ratio: as a power of two where it is one."""
    exponent = np.log2(ratio)
    return f"$2^{{{exponent:.0f}}}$" if abs(exponent - round(exponent)) < 1e-6 else short_number(float(f"{ratio:.3g}"))


def key(label: str, **style: Any) -> Line2D:
    """Make a legend's entry."""
    return Line2D([], [], label=label, **style)


def shade(axes: Axes, table: Table, across: str, up: str, *, number: int) -> None:
    """Shade from `up`_low to `up`_high of a table."""
    low, high = table[f"{up}_low"], table[f"{up}_high"]
    axes.fill_between(table[across], low, high, color=colour(number), alpha=0.15, linewidth=0)


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int = 4) -> None:
    """Write one legend below all panels."""
    legend_in(figure, handles, loc="outside lower center", ncols=columns)


def legend_in(where: Figure | Axes, handles: Sequence[Artist], **more: Any) -> Legend:
    """Write a legend into a figure or axes."""
    legend = where.legend(handles=list(handles), frameon=False, fontsize=8.5, **more)
    legend.get_title().set(color=INK, fontsize=8.5)
    for text in legend.get_texts():
        text.set_color(INK)
    return legend
