"""What doubling a budget takes off the noise-batch ratio at equal steps: vector fields, by accounting alone."""

import itertools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedlm.simulations.laws.figures.axes import head, label_axes, powers_of_two, titled
from fedlm.simulations.laws.figures.exact_noise import noise_multipliers
from fedlm.simulations.laws.figures.tables import Table, table_of
from fedlm.simulations.plot_style import INK, MUTED, new_figure

STEPS, DELTA = 16_000, 1e-8
_LABELS = {
    "examples": "examples N",
    "epsilon": "epsilon (at delta $10^{-8}$)",
    "batch_size": "batch size B (examples)",
}
_PANELS = (
    ("a", "batch_size", "epsilon", {"examples": 2.0**24}),
    ("b", "batch_size", "examples", {"epsilon": 4.0}),
    ("c", "epsilon", "examples", {"batch_size": 2.0**16}),
)
_FIXED = {"examples": "N = 2²⁴ examples", "epsilon": "epsilon = 4", "batch_size": "B = 65,536 examples"}
_COLOURS, _INCHES = ScalarMappable(Normalize(-1, 1), "viridis"), 0.15
_RANGES = {"examples": range(18, 31), "epsilon": range(-2, 8), "batch_size": range(8, 23)}


def noise_field_table() -> Table:
    """Compute by what factor each of two budgets, doubled alone, divides the noise-batch ratio at 16,000 steps.

    Panels: `a` has 2^24 examples, `b` epsilon 4, `c` batches of 65,536 (McKenna et al. 2025, figure 4). The noise is
    that of Poisson sampling, add-or-remove. A gain of 1 halves the ratio. Batches of half of the examples or more are
    left out.
    """
    return table_of(itertools.chain.from_iterable(_panel_rows(*panel) for panel in _PANELS))


def _panel_rows(panel: str, across: str, up: str, fixed: dict[str, float]) -> list[dict[str, Any]]:
    points = [fixed | {across: 2.0**x, up: 2.0**y} for x, y in itertools.product(_RANGES[across], _RANGES[up])]
    points = [point for point in points if 2 * point["batch_size"] < point["examples"]]
    ratios = _ratios(points)
    gains = {name: ratios / _ratios([point | {name: 2 * point[name]} for point in points]) - 1 for name in (across, up)}
    return [
        {"panel": panel, **{name: point[name] for name in _LABELS}, "steps": STEPS, "delta": DELTA}
        | {"noise_batch_ratio": ratio}
        | {f"gain_{name}": gains[name][number] if name in gains else np.nan for name in _LABELS}
        for number, (point, ratio) in enumerate(zip(points, ratios, strict=True))
    ]


def _ratios(points: list[dict[str, float]]) -> np.ndarray:
    examples, batches, epsilons = (
        np.array([point[name] for point in points]) for name in ("examples", "batch_size", "epsilon")
    )
    return noise_multipliers(batches / examples, STEPS, epsilons, DELTA) / batches


def draw_noise_fields(table: Table) -> Figure:
    """Draw the vector fields, and what an arrow says beside them."""
    figure = new_figure(6.4)
    panels = figure.subplots(2, 2).ravel()
    for axes, (panel, across, up, fixed) in zip(panels, _PANELS, strict=False):
        part = table.where(panel=panel)
        if len(part):
            _draw_field(axes, part, across, up)
        titled(axes, f"({panel}) {_FIXED[next(iter(fixed))]}")
    _draw_key(panels[3])
    head(figure, f"What doubling a budget takes off the noise (T = {STEPS:,})")
    return figure


def _draw_field(axes: Axes, table: Table, across: str, up: str) -> None:
    u, v = table[f"gain_{across}"], table[f"gain_{up}"]
    x, y = np.log2(table[across]), np.log2(table[up])
    _draw_arrows(axes, x, y, u, v)
    axes.set(xlim=(x.min() - 0.6, x.max() + 1.4), ylim=(y.min() - 0.6, y.max() + 1.4))
    powers_of_two(axes.xaxis)
    powers_of_two(axes.yaxis)
    label_axes(axes, _LABELS[across], _LABELS[up])


def _draw_arrows(axes: Axes, x: ArrayLike, y: ArrayLike, u: ArrayLike, v: ArrayLike) -> None:
    """Draw arrows whose length does not depend on the axes, coloured by their direction."""
    colours = _COLOURS.to_rgba(np.clip(np.log((1 + np.asarray(u)) / (1 + np.asarray(v))), -1, 1))
    axes.quiver(x, y, u, v, color=colours, angles="uv", scale_units="inches", scale=1 / _INCHES, width=0.007)


def _draw_key(axes: Axes) -> None:
    axes.axis("off")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    words = (
        "doubling the budget across\nhalves the ratio",
        "doubling the budget up\nhalves it",
        "doubling either halves it",
    )
    directions = ((1, 0), (0, 1), (1, 1))
    for place, text, direction in zip((0.78, 0.5, 0.25), words, directions, strict=True):
        _draw_arrows(axes, [0.08], [place], [direction[0]], [direction[1]])
        axes.text(0.26, place + 0.03, text, color=INK, fontsize=8.5, va="center")
    axes.text(0.0, 0.97, "How to read the arrows", color=INK, fontsize=9.5, va="center")
    axes.text(0.0, 0.04, "shorter: doubling it gains less", color=MUTED, fontsize=8.5, va="center")
