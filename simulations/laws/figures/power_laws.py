"""Power laws of loss without noise: what was measured, the fitted law, and the published one for its slope."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.axes import (
    REFERENCE,
    colour,
    head,
    label_axes,
    logarithmic,
    point_style,
    titled,
)
from fedlm.simulations.laws.figures.tables import Table, table_of
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.published import PUBLISHED
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.measurements import Measurements
from fedlm.simulations.plot_style import INK, MUTED, new_figure

_PANELS = {
    "kaplan_parameters": ("kaplan2020_parameters", "non-embedding parameters N"),
    "kaplan_data": ("kaplan2020_data", "training tokens D"),
    "kaplan_compute": ("kaplan2020_compute", "compute C (PF-days)"),
}


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
        theirs = PUBLISHED[published].predict(data)
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
        theirs = list(PUBLISHED[published].values.values())[-1]
        ours = f"exponent {exponent:.3g}" if np.isfinite(exponent) else "not fitted"
        titled(axes, f"{ours}; published {theirs:g}")
    axes = panels[3]
    axes.axis("off")
    keys = [
        Line2D([], [], label="measured", **point_style(0)),
        Line2D([], [], label="fitted power law", color=colour(1), linewidth=1.6),
        Line2D([], [], label="the published exponent,\nthrough the middle point", **REFERENCE),
    ]
    legend = axes.legend(handles=keys, loc="center left", frameon=False, fontsize=8.5, labelspacing=1.0)
    for text in legend.get_texts():
        text.set_color(INK)
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
