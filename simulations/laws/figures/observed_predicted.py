"""Parametric laws against what was measured: each block's loss by the loss that the law gives it."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.axes import colour, head, label_axes, legend_below, point_style, size_words
from fedlm.simulations.laws.figures.tables import Table
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.forms.rows import best_rate
from fedlm.simulations.laws.measurements import Measurements
from fedlm.simulations.plot_style import INK, MUTED, new_figure

_MOST_POINTS = 4000


def observed_table(measurements: Measurements, fitted: FittedForm) -> Table:
    """Tabulate observed and predicted losses of the best learning rate of each cell.

    `fitted` is 1 in the rows of such trainings and steps as the law is fitted to. Of very many rows every so-manieth is
    kept.
    """
    measurements = measurements.where(best_rate(measurements))
    measurements = measurements.where(np.arange(0, len(measurements), 1 + len(measurements) // _MOST_POINTS))
    columns = {
        name: np.asarray(getattr(measurements, name), object if name == "model" else np.float64)
        for name in ("model", "parameters", "noise_batch_ratio", "batch_size", "length", "steps", "step", "seed")
    }
    return Table(
        columns
        | {
            "form": np.full(len(measurements), fitted.form, object),
            "fitted": FORMS[fitted.form].rows(measurements).astype(np.float64),
            "observed": measurements.loss.astype(np.float64),
            "predicted": fitted.predict_rows(measurements),
        }
    )


def draw_observed(table: Table) -> Figure:
    """Draw observed against predicted losses, a colour a model size; rows that no fit saw are hollow."""
    figure = new_figure(5.2)
    axes = figure.add_subplot()
    handles = []
    for number, parameters in enumerate(sorted(table.values("parameters"))):
        style = point_style(number, markersize=3.4)
        for fitted, face in ((0.0, "none"), (1.0, colour(number))):
            part = table.where(parameters=parameters, fitted=fitted)
            axes.plot(part["predicted"], part["observed"], markerfacecolor=face, alpha=0.75, **style)
        handles.append(Line2D([], [], label=f"{size_words(parameters)} parameters", **style))
    ends = _limits(table)
    axes.plot(ends, ends, color=MUTED, linewidth=1.0, zorder=1)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    label_axes(axes, "predicted loss (nats a token)", "observed loss (nats a token)")
    text = "\n".join(_errors(table, fitted, words) for fitted, words in ((1.0, "fitted"), (0.0, "others (hollow)")))
    axes.text(0.03, 0.97, text.strip(), transform=axes.transAxes, va="top", color=INK, fontsize=8.5)
    legend_below(figure, handles, columns=3)
    head(figure, f"Observed against predicted loss: {table.values('form')[0]}")
    return figure


def _limits(table: Table) -> tuple[float, float]:
    observed = table["observed"]
    low, high = float(observed.min()), float(np.quantile(observed, 0.999))
    spare = 0.04 * (high - low) or 0.1
    return low - spare, high + spare


def _errors(table: Table, fitted: float, words: str) -> str:
    part = table.where(fitted=fitted)
    if not len(part):
        return ""
    error = np.abs(part["predicted"] / part["observed"] - 1)
    return f"{words}: median error {np.median(error):.2%}, 95th percentile {np.quantile(error, 0.95):.2%}"
