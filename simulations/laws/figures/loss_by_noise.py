"""Loss against the noise-batch ratio at the last step: measured, and as the parametric laws have it."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.axes import (
    colour,
    head,
    label_axes,
    legend_below,
    line_style,
    point_style,
    size_words,
)
from fedlm.simulations.laws.figures.tables import Table, table_of
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.rows import best_rate, final
from fedlm.simulations.laws.measurements import Measurements
from fedlm.simulations.plot_style import INK, new_figure


def noise_table(measurements: Measurements, laws: list[FittedForm]) -> Table:
    """Tabulate the last loss of runs with noise at the best rates, the mean over seeds, and what each law predicts."""
    last = measurements.where(best_rate(measurements) & final(measurements) & (measurements.noise_batch_ratio > 0))
    predicted = {law.form: law.predict_rows(last) for law in laws}
    keys = np.stack([last.parameters, last.noise_batch_ratio, last.steps, last.batch_size], axis=1)
    rows = []
    for key in np.unique(keys, axis=0):
        same = (keys == key).all(axis=1)
        names = ("parameters", "noise_batch_ratio", "steps", "batch_size")
        rows.append(
            dict(zip(names, map(float, key), strict=True))
            | {"seeds": int(same.sum()), "observed": float(last.loss[same].mean())}
            | {name: float(values[same].mean()) for name, values in predicted.items()}
        )
    return table_of(rows)


def draw_loss_by_noise(table: Table) -> Figure:
    """Draw points for what was measured, and a line a law; the longest runs of each model, a colour a size."""
    table = table.where(steps=max(table.values("steps")))
    laws = [name for name in table.columns if name not in _MEASURED]
    figure = new_figure(4.6)
    axes = figure.add_subplot()
    handles = []
    for number, parameters in enumerate(sorted(table.values("parameters"))):
        part = table.where(parameters=parameters)
        ratios = part["noise_batch_ratio"]
        points = point_style(number, markersize=5.0)
        axes.plot(ratios, part["observed"], zorder=4, **points)
        for place, law in enumerate(laws, 1):
            axes.plot(ratios, part[law], **line_style(place, color=colour(number), linewidth=1.3))
        handles.append(Line2D([], [], label=f"{size_words(parameters)} parameters", **points))
    for place, law in enumerate(laws, 1):
        handles.append(Line2D([], [], label=law, **line_style(place, color=INK, linewidth=1.3)))
    axes.set_xscale("log", base=2)
    label_axes(axes, "noise-batch ratio", "loss at the last step (nats a token)")
    legend_below(figure, handles, columns=3)
    head(figure, "Loss by noise: measured (points) and parametric laws (lines)")
    return figure


_MEASURED = ("parameters", "noise_batch_ratio", "steps", "batch_size", "seeds", "observed")
