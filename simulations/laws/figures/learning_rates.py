"""Loss by learning rate: a parabola in its logarithm, whose vertex is the best rate (VaultGemma 2025, section 6)."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.axes import (
    head,
    label_axes,
    legend_below,
    point_style,
    ratio_words,
    size_words,
    titled,
)
from fedlm.simulations.laws.figures.tables import Table, table_of
from fedlm.simulations.laws.loss_curves import parabola_vertices
from fedlm.simulations.laws.measured_grid import final_losses
from fedlm.simulations.laws.measurements import Measurements
from fedlm.simulations.plot_style import INK, new_figure


def rate_table(measurements: Measurements, batch_size: int | None = None) -> Table:
    """Tabulate the last loss of the longest runs by rate, the mean over seeds, with the vertex of each parabola.

    The vertex is NaN where there are fewer than three rates, or where the least loss is not between them.

    Raises:
      DataError: there is no finished run, or there are several batch sizes and none is chosen.
    """
    grid = final_losses(measurements, batch_size)
    logs = np.log(grid.learning_rates)
    rows = []
    for model, row in enumerate(grid.parameters):
        for ratio, value in enumerate(grid.ratios):
            cell = grid.loss[model, :, ratio]
            ended = np.flatnonzero(np.isfinite(cell).any(axis=(0, 1)))
            if not len(ended):
                continue
            last = cell[..., ended[-1]]
            known = np.isfinite(last).any(axis=1)
            mean = np.full(len(logs), np.nan)
            mean[known] = np.nanmean(last[known], axis=1)
            vertex, least = _vertex(logs, mean)
            rows += [
                {"model": grid.models[model], "parameters": float(row), "noise_batch_ratio": float(value)}
                | {"steps": float(grid.steps[ended[-1]]), "learning_rate": float(np.exp(logs[rate]))}
                | {"seeds": int(np.isfinite(last[rate]).sum()), "loss": float(mean[rate])}
                | {"vertex_rate": float(np.exp(vertex)), "vertex_loss": least}
                for rate in np.flatnonzero(known)
            ]
    return table_of(rows)


def _vertex(logs: np.ndarray, losses: np.ndarray) -> tuple[float, float]:
    """Return the vertex of the parabola and the loss there; NaN where there is none between the rates."""
    at, least = parabola_vertices(logs, losses)
    inside = np.isfinite(losses).sum() >= 3 and not np.isclose(at, logs[np.isfinite(losses)]).any()
    return (float(at), float(least)) if inside else (np.nan, np.nan)


def draw_rates(table: Table) -> Figure:
    """Draw loss by learning rate, a panel a model and a line a ratio, with the parabolas and their vertices."""
    models = table.values("model")
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    figure = new_figure(1.4 + 2.1 * rows, width=8.4 if columns == 3 else 5.8)
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    ratios = sorted(table.values("noise_batch_ratio"))
    for axes, model in zip(panels, models, strict=False):
        part = table.where(model=model)
        for number, ratio in enumerate(ratios):
            _draw_parabola(axes, part.where(noise_batch_ratio=ratio), number)
        axes.set_xscale("log", base=2)
        label_axes(axes, "learning rate", "last loss (nats a token)" if axes in panels[::columns] else "")
        titled(axes, f"{size_words(part['parameters'][0])} parameters")
    for axes in panels[len(models) :]:
        axes.axis("off")
    handles = [
        Line2D([], [], label=_ratio_words(ratio), **point_style(number, linestyle="-", linewidth=1.2))
        for number, ratio in enumerate(ratios)
    ]
    handles.append(Line2D([], [], label="vertex", **_RING, mec=INK))
    legend_below(figure, handles, columns=4)
    head(figure, "Loss by learning rate: parabolas in its logarithm")
    return figure


_RING: dict[str, Any] = {"marker": "o", "ms": 8, "mfc": "none", "mew": 1.4, "linestyle": ""}


def _ratio_words(ratio: float) -> str:
    return "no noise" if ratio == 0 else f"ratio {ratio_words(ratio)}"


def _draw_parabola(axes: Axes, table: Table, number: int) -> None:
    if not len(table):
        return
    style = point_style(number, linestyle="-", linewidth=1.2)
    axes.plot(table["learning_rate"], table["loss"], zorder=4, **style | {"linestyle": ""})
    logs = np.log(table["learning_rate"])
    if len(logs) >= 3:
        curve = np.polynomial.Polynomial.fit(logs, table["loss"], 2)
        along = np.linspace(logs[0], logs[-1], 60)
        axes.plot(np.exp(along), curve(along), color=style["color"], linewidth=1.2)
    axes.plot(table["vertex_rate"][:1], table["vertex_loss"][:1], mec=style["color"], **_RING)
