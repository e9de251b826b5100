"""Where a parametric law has the best model for a compute, by the noise: beside the proportions that hold without."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.simulations.laws.figures.allocation import COMPUTE
from fedlm.simulations.laws.figures.axes import (
    REFERENCE,
    head,
    label_axes,
    legend_below,
    line_style,
    logarithmic,
    ratio_words,
)
from fedlm.simulations.laws.figures.saturation import CHINCHILLA
from fedlm.simulations.laws.figures.tables import Table, table_of
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.optimal_size import optimal_parameters
from fedlm.simulations.laws.plan import FLOPS
from fedlm.simulations.plot_style import new_figure


def optimum_table(
    fitted: FittedForm, computes: Sequence[float], noise_batch_ratios: Sequence[float], length: int
) -> Table:
    """Minimise equation 3 over the parameters at fixed compute and noise (McKenna et al. 2025, figure 19).

    Args:
      fitted: the law `mckenna_l2`, whose examples are C / (6 M S).
      computes: C, in FLOPs.
      noise_batch_ratios: s, 0 for none.
      length: S, tokens of an example.
    """
    rows = []
    for ratio, compute in itertools.product(noise_batch_ratios, computes):
        parameters, loss = optimal_parameters(fitted.coefficients, compute, ratio, length)
        rows.append(
            {"noise_batch_ratio": float(ratio), "compute": float(compute), "length": length}
            | {"parameters": parameters, "loss": loss, "tokens_per_parameter": compute / (FLOPS * parameters**2)}
        )
    return table_of(rows)


def draw_optima(table: Table) -> Figure:
    """Draw the best parameters against compute, a line a noise-batch ratio, and 20 tokens a parameter beside."""
    figure = new_figure(4.6)
    axes = figure.add_subplot()
    handles = []
    for number, ratio in enumerate(table.values("noise_batch_ratio")):
        part = table.where(noise_batch_ratio=ratio)
        style = line_style(number)
        axes.plot(part["compute"], part["parameters"], zorder=3, **style)
        words = "no noise" if ratio == 0 else f"noise-batch ratio {ratio_words(ratio)}"
        handles.append(Line2D([], [], label=words, **style))
    compute = np.array(table.values("compute"))
    axes.plot(compute, np.sqrt(compute / (FLOPS * CHINCHILLA)), **REFERENCE)
    handles.append(Line2D([], [], label="20 tokens a parameter", **REFERENCE))
    logarithmic(axes.xaxis)
    logarithmic(axes.yaxis)
    label_axes(axes, COMPUTE, "best parameters M")
    legend_below(figure, handles, columns=2)
    head(figure, "Best model by compute and noise, by the parametric law")
    return figure
