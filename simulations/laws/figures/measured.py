"""What was measured: loss by learning rate, and power laws without noise."""

from collections.abc import Mapping
from typing import Any

import numpy as np
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
    logarithmic,
    point_style,
    ratio_words,
    size_words,
    titled,
)
from fedlm.simulations.laws.figures.table import Table, table_of
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.measuring.measurements import Measurements
from fedlm.simulations.laws.surface.measured_grid import final_losses
from fedlm.simulations.laws.surface.smoothing import parabola_vertices
from fedlm.simulations.plot_style import INK, MUTED, new_figure


def rate_table(measurements: Measurements) -> Table:
    """Tabulate the last loss of the longest runs by rate, the mean over seeds, with the vertex of each parabola.

    The vertex is NaN where there are fewer than three rates, or where the least loss is not between them.

    Raises:
      DataError: there is no finished run, or there are several batch sizes.
    """
    grid = final_losses(measurements)
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
        key(_ratio_words(ratio), **point_style(number, linestyle="-", linewidth=1.2))
        for number, ratio in enumerate(ratios)
    ]
    handles.append(key("vertex", **_RING, mec=INK))
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


_PANELS: dict[str, tuple[dict[str, float], str]] = {
    "kaplan_parameters": ({"N_c": 8.8e13, "alpha_N": 0.076}, "non-embedding parameters N"),
    "kaplan_data": ({"D_c": 5.4e13, "alpha_D": 0.095}, "training tokens D"),
    "kaplan_compute": ({"C_c": 2e7, "alpha_C": 0.057}, "compute C (PF-days)"),
}
"""By law: its published coefficients (Kaplan et al. 2020, equations 1.1 and 1.2 and section 3.3), of nats per token of
WebText2 with 50,257 words and a context of 1024, and what its variable is."""


def power_law_table(measurements: Measurements, fitted: Mapping[str, FittedForm]) -> Table:
    """Tabulate losses by parameters, data and compute: each law's rows of the measurements, and what laws give there.

    Args:
      measurements: of a grid, some without noise.
      fitted: laws by name; `predicted` is NaN for a law that is not there, as where the data were too few.

    Returns:
      Rows of each of the laws `kaplan_parameters`, `kaplan_data` and `kaplan_compute`: `value` is what the loss is a
      power of, `exponent` the fitted one, and `published` the loss by the published constants, of other text.
    """
    rows = []
    for name, (published, _) in _PANELS.items():
        form = FORMS[name]
        kept = measurements.where(form.rows(measurements))
        data = form.variables(kept)
        (values,) = data.values()
        law = fitted.get(name)
        predicted = np.full(len(kept), np.nan) if law is None else law.predict(data)
        exponent = np.nan if law is None else law.coefficients[form.names[-1]]
        theirs = form.predict(published, data)
        for number in np.argsort(values):
            rows.append(
                {"law": name, "value": values[number], "observed": kept.loss[number], "predicted": predicted[number]}
                | {"published": theirs[number], "exponent": exponent}
            )
    return table_of(rows)


def draw_power_laws(table: Table) -> Figure:
    """Draw a panel a law: points measured, a line fitted, and a dotted one of the published exponent."""
    figure = new_figure(5.8)
    panels = figure.subplots(2, 2).ravel()
    for axes, (name, (published, across)) in zip(panels, _PANELS.items(), strict=False):
        part = table.where(law=name)
        _draw_law(axes, part)
        label_axes(axes, across, "loss without noise\n(nats a token)")
        exponent = part["exponent"][0] if len(part) else np.nan
        theirs = list(published.values())[-1]
        ours = f"exponent {exponent:.3g}" if np.isfinite(exponent) else "not fitted"
        titled(axes, f"{ours}; published {theirs:g}")
    axes = panels[3]
    axes.axis("off")
    keys = [
        key("measured", **point_style(0)),
        key("fitted power law", color=colour(1), linewidth=1.6),
        key("the published exponent,\nthrough the middle point", **REFERENCE),
    ]
    legend_in(axes, keys, loc="center left", labelspacing=1.0)
    head(figure, "Power laws of the loss without noise")
    return figure


def _draw_law(axes: Axes, table: Table) -> None:
    if not len(table):
        axes.text(0.5, 0.5, "no such measurements", ha="center", color=MUTED, fontsize=8.5, transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    values, observed = table["value"], table["observed"]
    axes.plot(values, observed, zorder=3, **point_style(0))
    axes.plot(values, table["predicted"], color=colour(1), linewidth=1.6, zorder=4)
    middle = len(values) // 2
    axes.plot(values, table["published"] / table["published"][middle] * observed[middle], **REFERENCE)
    logarithmic(axes.xaxis)
    logarithmic(axes.yaxis)
