"""What a choice costs: trainings that are fixed beforehand, and one choice that is off."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedlm.simulations.laws.figures.allocation import QUANTITIES
from fedlm.simulations.laws.figures.axes import (
    DASHES,
    head,
    key,
    label_axes,
    legend_below,
    line_style,
    logarithmic,
    point_style,
    shade,
    short_number,
)
from fedlm.simulations.laws.figures.search import (
    DELTA,
    EPSILONS,
    EXAMPLES,
    TrainingSearch,
    shown_computes,
)
from fedlm.simulations.laws.figures.table import Progress, Table, no_progress, table_of
from fedlm.simulations.laws.planning.central_planner import FLOPS, Budget
from fedlm.simulations.laws.surface.loss_surface import LossSurface
from fedlm.simulations.plot_style import INK, new_figure


class Baseline(NamedTuple):
    """A training that is fixed before its epsilon is known.

    Attributes:
      name: of the model.
      parameters: M.
      steps: T.
    """

    name: str
    parameters: float
    steps: int


BASELINES = (Baseline("BertLarge", 335e6, 7500), Baseline("BertMedium", 41e6, 5000), Baseline("BertTiny", 4.6e6, 2500))
BASELINE_EXAMPLES = 1e7


def baselines_of(surface: LossSurface) -> tuple[Baseline, ...]:
    """Return the paper's baselines where the surface has their models, else its largest, middle and smallest model.

    The steps of these are a half, a third and a sixth of the measured ones, for 3 : 2 : 1 as in the paper.
    """
    least, most = surface.parameters[[0, -1]]
    if least <= BASELINES[-1].parameters and BASELINES[0].parameters <= most:
        return BASELINES
    chosen = dict.fromkeys((len(surface.models) - 1, len(surface.models) // 2, 0))
    return tuple(
        Baseline(surface.models[place], float(surface.parameters[place]), int(surface.measured_steps // part))
        for place, part in zip(chosen, (2, 3, 6), strict=False)
    )


def baseline_table(search: TrainingSearch, progress: Progress = no_progress) -> Table:
    """Tabulate losses by epsilon, 1 to 8,192: best trainings at a compute and a fifth of it, and fixed trainings."""
    surface = search.surface
    compute = shown_computes(surface)[1]
    epsilons = [2.0**exponent for exponent in range(14)]
    best = [Budget(BASELINE_EXAMPLES, epsilon, DELTA, part * compute) for part in (1.0, 0.2) for epsilon in epsilons]
    rows = [
        {"training": f"best for each epsilon, C = {short_number(row['compute'])} FLOPs", "fixed": 0.0}
        | {name: row[name] for name in _COLUMNS}
        for row in search.table(best, progress).rows()
    ]
    for one in baselines_of(surface):
        batch_size = fixed_batch_size(compute, one.parameters, one.steps, surface.length)
        words = f"{one.name}, T = {one.steps:,}, B = {batch_size:,}"
        for epsilon in epsilons:
            budget = Budget(BASELINE_EXAMPLES, epsilon, DELTA, compute)
            ratio = search.noise_batch_ratio(budget, batch_size, one.steps)
            point = one.parameters, one.steps, ratio
            low, high = surface.band(*point)
            rows.append(
                {"training": words, "fixed": 1.0, **budget._asdict(), "parameters": one.parameters}
                | {"batch_size": batch_size, "steps": one.steps, "noise_batch_ratio": ratio}
                | {"loss": surface.predict(*point).item(), "loss_low": low.item(), "loss_high": high.item()}
            )
    return table_of({name: np.nan if value is None else value for name, value in row.items()} for row in rows)


_COLUMNS = (
    *Budget._fields,
    *("parameters", "batch_size", "steps", "noise_batch_ratio", "loss", "loss_low", "loss_high"),
)


def draw_baselines(table: Table) -> Figure:
    """Draw loss against epsilon, a line a `training`: chosen for each epsilon solid, fixed ones dashed."""
    figure = new_figure(4.6)
    axes = figure.add_subplot()
    handles = []
    for number, training in enumerate(table.values("training")):
        part = table.where(training=training)
        fixed = bool(part["fixed"][0])
        style = point_style(number, linestyle=DASHES[1] if fixed else "-", linewidth=1.7)
        axes.plot(part["epsilon"], part["loss"], zorder=3, **style)
        if not fixed:
            shade(axes, part, "epsilon", "loss", number=number)
        reached = "" if np.isfinite(part["loss"]).any() else " (outside the grid)"
        handles.append(key(training + reached, **style))
    axes.set_xscale("log", base=2)
    label_axes(axes, f"epsilon (at delta {short_number(table['delta'][0])})", QUANTITIES["loss"])
    legend_below(figure, handles, columns=1)
    head(figure, f"Loss by epsilon, for N = {short_number(table['examples'][0])}: chosen and fixed trainings")
    return figure


def fixed_batch_size(compute: float, parameters: float, steps: float, length: int) -> int:
    """Say what batch uses up the compute: B = C / (6 M T S) (McKenna et al. 2025, section 4.4), at least 1."""
    return max(1, int(np.floor(compute / (FLOPS * parameters * steps * length))))


CHOICES = ("steps", "parameters", "batch_size")
BUDGETS = {"epsilon": "epsilon", "examples": "examples N", "compute": "compute C"}


def one_choice_table(search: TrainingSearch, progress: Progress = no_progress) -> Table:
    """Tabulate the least loss for each value of one choice, of one budget varied from N = 1e7, epsilon 4 and a compute.

    Steps are rounded to quarter powers of two.
    """
    surface = search.surface
    computes = shown_computes(surface)
    middle = Budget(1e7, 4.0, DELTA, computes[1])
    varied = {"epsilon": EPSILONS, "examples": EXAMPLES, "compute": computes}
    lines = [(name, middle._replace(**{name: amount})) for name, amounts in varied.items() for amount in amounts]
    rows = []
    for done, (name, budget) in enumerate(lines, 1):
        found = search.candidates(budget)
        for choice in CHOICES:
            values = getattr(found, choice)
            values = 2 ** (np.round(4 * np.log2(values)) / 4) if choice == "steps" else values
            loss = np.where(np.isnan(found.loss), np.inf, found.loss)
            for value in np.unique(values):
                least = loss[values == value].min()
                if np.isfinite(least):
                    rows.append({"varied": name, "choice": choice, **budget._asdict(), "value": value, "loss": least})
        progress(done, len(lines))
    return table_of(rows)


def draw_one_choice(table: Table) -> Figure:
    """Draw loss in nine panels: a row a choice, a column a budget of which there are several, the others fixed.

    Args:
      table: rows with `choice` and its `value`, `varied` and what the budget is there, and the best `loss`.
    """
    figure = new_figure(7.4, width=8.4)
    panels = figure.subplots(len(CHOICES), len(BUDGETS), sharex="row", sharey=True)
    for row, choice in zip(panels, CHOICES, strict=True):
        for axes, (budget, words) in zip(row, BUDGETS.items(), strict=True):
            part = table.where(choice=choice, varied=budget)
            handles = []
            for number, amount in enumerate(part.values(budget)):
                line = part.where(**{budget: amount})
                style = line_style(number)
                axes.plot(line["value"], line["loss"], zorder=3, **style)
                handles.append(key(short_number(amount), **style))
            logarithmic(axes.xaxis)
            label_axes(axes, QUANTITIES[choice], QUANTITIES["loss"] if budget == "epsilon" else "")
            if choice == CHOICES[0]:
                legend = axes.legend(
                    handles=handles,
                    title=words,
                    loc="lower center",
                    bbox_to_anchor=(0.5, 1.01),
                    ncols=2,
                    frameon=False,
                    fontsize=8,
                )
                legend.get_title().set(color=INK, fontsize=8.5)
    head(figure, "Loss against one choice, with the others at their best")
    return figure
