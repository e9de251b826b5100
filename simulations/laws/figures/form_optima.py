"""Where a parametric law has the best model for a compute, by the noise: beside the proportions that hold without."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import minimize_scalar

from fedlm.simulations.laws.figures.allocation import COMPUTE
from fedlm.simulations.laws.figures.axes import REFERENCE, head, label_axes, legend_below, line_style, logarithmic
from fedlm.simulations.laws.figures.tables import Table, table_of
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.mckenna_l2 import saturating_noise
from fedlm.simulations.plot_style import new_figure

_LEAST, _MOST = 1e4, 1e13  # parameters


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
    for ratio in noise_batch_ratios:
        for compute in computes:

            def loss(log_parameters: float, compute: float = compute, ratio: float = ratio) -> float:
                parameters = np.exp(log_parameters)
                data = {"parameters": parameters, "training_examples": compute / (6 * parameters * length)}
                return float(fitted.predict({**data, "saturating_noise": saturating_noise(ratio)}))

            found = minimize_scalar(loss, bounds=(np.log(_LEAST), np.log(_MOST)), method="bounded")
            parameters = float(np.exp(found.x))
            inside = 1.02 * _LEAST < parameters < _MOST / 1.02
            rows.append(
                {"noise_batch_ratio": float(ratio), "compute": float(compute), "length": length}
                | {"parameters": parameters if inside else np.nan, "loss": float(found.fun)}
                | {"tokens_per_parameter": compute / (6 * parameters**2) if inside else np.nan}
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
        words = "no noise" if ratio == 0 else f"noise-batch ratio $2^{{{np.log2(ratio):.3g}}}$"
        handles.append(Line2D([], [], label=words, **style))
    compute = np.array(table.values("compute"))
    axes.plot(compute, np.sqrt(compute / (6 * 20)), **REFERENCE)
    handles.append(Line2D([], [], label="20 tokens a parameter", **REFERENCE))
    logarithmic(axes.xaxis)
    logarithmic(axes.yaxis)
    label_axes(axes, COMPUTE, "best parameters M")
    legend_below(figure, handles, columns=2)
    head(figure, "Best model by compute and noise, by the parametric law")
    return figure
