"""The look of the plots: colours of models, and figures as PNG or as inline SVG that follows the page's theme."""

import io
import re
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, MUTED, GRID, EMPTY = "#1c2127", "#5b6570", "#dde2e7", "#eceff2"
FAMILIES = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#8a6d00", "#3a86c8")
"""Colours that people with any common colour blindness tell apart, after Okabe and Ito."""
THEME = {INK: "ink", MUTED: "muted", GRID: "grid", EMPTY: "empty"} | {
    colour: f"series-{number}" for number, colour in enumerate(FAMILIES)
}
"""Colours that the page replaces by its own, so that inline plots can be read in dark mode."""
MARKERS = ("o", "s", "^", "D", "v")
MAX_NAME = 26
WIDTH = 5.8

_SETTINGS: Any = {"svg.fonttype": "path", "svg.hashsalt": "fedlm", "hatch.linewidth": 0.8}


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Make an empty figure, of the report's width unless told, independent of pyplot's state; both are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style_frame(axes: Axes) -> None:
    """Give axes the look of all plots: no frame but two quiet lines, and a grid behind what is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=INK, which="both")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def settle(figure: Figure) -> None:
    """Lay a finished figure, to which nothing more is added, out once for all: most of the work of drawing it."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def short_name(model: str) -> str:
    """Shorten a model's name so that it fits a plot."""
    return model if len(model) <= MAX_NAME else model[: MAX_NAME - 1] + "…"


def to_png(figure: Figure) -> bytes:
    """Draw a figure on white, as the content of a PNG file."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(buffer, format="png", dpi=170, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Figure, name: str) -> str:
    """Draw a figure as an SVG element for an HTML page, without background.

    The name is put before its identifiers, which must be unique on the page. Colours of `THEME` are CSS variables
    `--plot-NAME`.
    """
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1))
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for colour, variable in THEME.items():
        text = text.replace(colour, f"var(--plot-{variable})")
    return text
