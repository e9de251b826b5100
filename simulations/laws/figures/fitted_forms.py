"""Parametric laws beside what was measured, and the best model that one has for a compute."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar

from fedlm.simulations.laws.figures.allocation import CHINCHILLA, COMPUTE
from fedlm.simulations.laws.figures.axes import (
    REFERENCE,
    colour,
    head,
    key,
    label_axes,
    legend_below,
    line_style,
    logarithmic,
    point_style,
    ratio_words,
    size_words,
)
from fedlm.simulations.laws.figures.table import Table, table_of
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.forms.rows import best_rate, final, saturating_noise
from fedlm.simulations.laws.measuring.measurements import Measurements
from fedlm.simulations.laws.planning.central_planner import FLOPS
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
        handles.append(key(f"{size_words(parameters)} parameters", **style))
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


def noise_table(measurements: Measurements, laws: list[FittedForm]) -> Table:
    """Tabulate the last loss of runs with noise at the best rates, the mean over seeds, and what each law predicts."""
    last = measurements.where(best_rate(measurements) & final(measurements) & (measurements.noise_batch_ratio > 0))
    predicted = {law.form: law.predict_rows(last) for law in laws}
    keys = np.stack([last.parameters, last.noise_batch_ratio, last.steps, last.batch_size], axis=1)
    rows = []
    for point in np.unique(keys, axis=0):
        same = (keys == point).all(axis=1)
        names = ("parameters", "noise_batch_ratio", "steps", "batch_size")
        rows.append(
            dict(zip(names, map(float, point), strict=True))
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
        handles.append(key(f"{size_words(parameters)} parameters", **points))
    for place, law in enumerate(laws, 1):
        handles.append(key(law, **line_style(place, color=INK, linewidth=1.3)))
    axes.set_xscale("log", base=2)
    label_axes(axes, "noise-batch ratio", "loss at the last step (nats a token)")
    legend_below(figure, handles, columns=3)
    head(figure, "Loss by noise: measured (points) and parametric laws (lines)")
    return figure


_MEASURED = ("parameters", "noise_batch_ratio", "steps", "batch_size", "seeds", "observed")


SIZES = (1e3, 1e15)
"""Between which numbers of parameters the best one is searched."""

_EDGE = 1.02


def optimal_parameters(
    values: Mapping[str, float],
    compute: float,
    noise_batch_ratio: float,
    length: int,
    *,
    sizes: tuple[float, float] = SIZES,
) -> tuple[float, float]:
    """Minimise the second form over M at fixed compute C and noise-batch ratio s, where N = C / (6 M length).

    Args:
      values: of the form's coefficients.
      compute: C = 6 M N length, in floating-point operations.
      noise_batch_ratio: s, 0 without noise.
      length: tokens of an example.
      sizes: the least and largest number of parameters that are searched.

    Returns:
      all parameters of the best model, NaN where that is at an end of what is searched, and the loss in nats per token.

    Raises:
      ConfigurationError: a coefficient has no value.
    """
    noise = saturating_noise(noise_batch_ratio)

    def loss(log_parameters: float) -> float:
        parameters = np.exp(log_parameters)
        examples = compute / (FLOPS * parameters * length)
        data = {"parameters": parameters, "training_examples": examples, "saturating_noise": noise}
        return float(FORMS["mckenna_l2"].predict(values, data))

    found = minimize_scalar(loss, bounds=tuple(np.log(sizes)), method="bounded", options={"xatol": 1e-10})
    best, (least, most) = float(np.exp(found.x)), sizes
    return best if _EDGE * least < best < most / _EDGE else np.nan, float(found.fun)


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
        handles.append(key(words, **style))
    compute = np.array(table.values("compute"))
    axes.plot(compute, np.sqrt(compute / (FLOPS * CHINCHILLA)), **REFERENCE)
    handles.append(key("20 tokens a parameter", **REFERENCE))
    logarithmic(axes.xaxis)
    logarithmic(axes.yaxis)
    label_axes(axes, COMPUTE, "best parameters M")
    legend_below(figure, handles, columns=2)
    head(figure, "Best model by compute and noise, by the parametric law")
    return figure
