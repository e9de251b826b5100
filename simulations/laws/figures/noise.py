"""Noise by accounting alone: what doubling a budget takes off, and what an attacker gains by the batch."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import privacy_profile
from fedlm.simulations.laws.figures.axes import (
    head,
    key,
    label_axes,
    legend_below,
    line_style,
    powers_of_two,
    short_number,
    size_words,
    titled,
)
from fedlm.simulations.laws.figures.search import noise_multipliers
from fedlm.simulations.laws.figures.table import Progress, Table, no_progress, table_of
from fedlm.simulations.laws.planning.central_planner import FLOPS
from fedlm.simulations.laws.surface.loss_surface import LossSurface
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
    _draw_arrows(axes, (x, y), (u, v))
    axes.set(xlim=(x.min() - 0.6, x.max() + 1.4), ylim=(y.min() - 0.6, y.max() + 1.4))
    powers_of_two(axes.xaxis)
    powers_of_two(axes.yaxis)
    label_axes(axes, _LABELS[across], _LABELS[up])


def _draw_arrows(axes: Axes, places: tuple[ArrayLike, ArrayLike], directions: tuple[ArrayLike, ArrayLike]) -> None:
    """Draw arrows whose length does not depend on the axes, coloured by their direction."""
    (x, y), (u, v) = places, directions
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
        _draw_arrows(axes, ([0.08], [place]), ([direction[0]], [direction[1]]))
        axes.text(0.26, place + 0.03, text, color=INK, fontsize=8.5, va="center")
    axes.text(0.0, 0.97, "How to read the arrows", color=INK, fontsize=9.5, va="center")
    axes.text(0.0, 0.04, "shorter: doubling it gains less", color=MUTED, fontsize=8.5, va="center")


EXAMPLES, EPSILON, DELTA = 10_000_000, 8.0, 1e-8
_BATCHES = tuple(2**exponent for exponent in range(10, 23))
_LEAST_STEPS = 50


class Training(NamedTuple):
    """What is fixed while the batch changes.

    Attributes:
      compute: FLOPs of a training.
      parameters: of the model.
      length: tokens of an example.
    """

    compute: float
    parameters: float
    length: int

    def steps(self, batch_size: int) -> int:
        """Say how many steps the compute is enough for (McKenna et al. 2025, section 2.1: C = 6 M B S T)."""
        return round(self.compute / (FLOPS * self.parameters * batch_size * self.length))


PUBLISHED = (Training(6e17, 4e6, 512), Training(6.3e19, 2e8, 512), Training(2.5e20, 2e8, 512))
"""Those of McKenna et al. 2025, figure 15, which does not say how many examples there are."""


def trainings_of(surface: LossSurface | None) -> tuple[Training, ...]:
    """Return the paper's trainings; of a surface without their models, its smallest and largest on as many examples."""
    if surface is None:
        return PUBLISHED
    least, most = map(float, surface.parameters[[0, -1]])
    small, large, larger = PUBLISHED
    if least <= 1.15 * small.parameters and larger.parameters <= most:
        return small._replace(parameters=max(small.parameters, least)), large, larger
    return tuple(
        Training(one.compute / (one.parameters * one.length) * size * surface.length, size, surface.length)
        for one, size in zip(PUBLISHED, (least, most, most), strict=True)
    )


def advantage_table(
    losses: Callable[[float, float, float], Any],
    progress: Progress = no_progress,
    *,
    trainings: Sequence[Training] = PUBLISHED,
    batches: Sequence[int] = _BATCHES,
) -> Table:
    """Compute noise, advantage and loss of trainings at epsilon 8, a row a batch size.

    Args:
      losses: predicts the loss of parameters, steps and noise-batch ratio; NaN where it cannot.
      progress: told of each batch size that is done.
      trainings: what is fixed.
      batches: in examples; those of too few steps, or of more than all examples, are left out.
    """
    cells = [
        (training, batch_size)
        for training, batch_size in itertools.product(trainings, batches)
        if training.steps(batch_size) >= _LEAST_STEPS and batch_size < EXAMPLES
    ]
    sizes, steps = (np.array(column) for column in zip(*((b, t.steps(b)) for t, b in cells), strict=True))
    noises = noise_multipliers(sizes / EXAMPLES, steps, EPSILON, DELTA)
    rows = []
    for done, ((training, batch_size), count, noise) in enumerate(zip(cells, steps, noises, strict=True), 1):
        rows.append(
            {
                **training._asdict(),
                "examples": EXAMPLES,
                "epsilon": EPSILON,
                "delta": DELTA,
                "batch_size": batch_size,
                "steps": int(count),
                "noise_multiplier": noise,
                "noise_batch_ratio": noise / batch_size,
                "membership_advantage": membership_advantage(EXAMPLES, batch_size, int(count), float(noise)),
                "loss": losses(training.parameters, count, noise / batch_size).item(),
            }
        )
        progress(done, len(cells))
    return table_of(rows)


def membership_advantage(examples: int, batch_size: int, steps: int, noise_multiplier: float) -> float:
    """Bound what a guess of one example's membership gains over chance, however it is made.

    The advantage, true positives less false positives of whoever sees all that training releases, is at most the total
    variation between trainings with and without the example: delta at epsilon 0 (Kairouz et al. 2015, "The
    composition theorem for differential privacy", theorem 2.1).
    """
    return privacy_profile(central_plan(examples, batch_size, steps, noise_multiplier), [0.0])[0]


def draw_advantage(table: Table) -> Figure:
    """Draw the loss above the advantage, a line a training; the advantage alone where no loss is known."""
    known = bool(np.isfinite(table["loss"]).any())
    figure = new_figure(5.6 if known else 4.0)
    panels = figure.subplots(1 + known, 1, sharex=True, squeeze=False).ravel()
    handles = []
    lines = list(dict.fromkeys(zip(table["compute"].tolist(), table["parameters"].tolist(), strict=True)))
    for number, (compute, parameters) in enumerate(lines):
        part = table.where(compute=compute, parameters=parameters)
        style = line_style(number, marker="o", markersize=3.6)
        words = f"C = {short_number(compute)} FLOPs, {size_words(parameters)} parameters"
        handles.append(key(words, **style))
        panels[-1].plot(part["batch_size"], part["membership_advantage"], **style)
        if known:
            panels[0].plot(part["batch_size"], part["loss"], **style)
    if known:
        label_axes(panels[0], "", "predicted loss\n(nats a token)")
    label_axes(panels[-1], "batch size B (examples)", "membership advantage\n(upper bound; 0: a guess)")
    panels[-1].set_ylim(0, 1.02 * max(1e-9, min(1.0, 1.15 * table["membership_advantage"].max())))
    panels[-1].set_xscale("log", base=2)
    legend_below(figure, handles, columns=1)
    head(
        figure,
        f"The batch decides what leaks at epsilon = {EPSILON:g}, N = {short_number(table['examples'][0])}",
    )
    return figure
