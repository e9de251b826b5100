"""Loss and what an attacker gains by the batch, at equal compute and epsilon: equal budgets do not protect alike."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import privacy_profile
from fedlm.simulations.laws.figures.axes import head, label_axes, legend_below, line_style, short_number, size_words
from fedlm.simulations.laws.figures.exact_noise import noise_multipliers
from fedlm.simulations.laws.figures.tables import Progress, Table, no_progress, table_of
from fedlm.simulations.laws.plan import FLOPS
from fedlm.simulations.laws.surface import LossSurface
from fedlm.simulations.plot_style import new_figure

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
    trainings: Sequence[Training] = PUBLISHED,
    examples: int = EXAMPLES,
    batches: Sequence[int] = _BATCHES,
) -> Table:
    """Compute noise, advantage and loss of trainings at epsilon 8, a row a batch size.

    Args:
      losses: predicts the loss of parameters, steps and noise-batch ratio; NaN where it cannot.
      progress: told of each batch size that is done.
      trainings: what is fixed.
      examples: N.
      batches: in examples; those of too few steps, or of more than all examples, are left out.
    """
    cells = [
        (training, batch_size)
        for training, batch_size in itertools.product(trainings, batches)
        if training.steps(batch_size) >= _LEAST_STEPS and batch_size < examples
    ]
    sizes, steps = (np.array(column) for column in zip(*((b, t.steps(b)) for t, b in cells), strict=True))
    noises = noise_multipliers(sizes / examples, steps, EPSILON, DELTA)
    rows = []
    for done, ((training, batch_size), count, noise) in enumerate(zip(cells, steps, noises, strict=True), 1):
        rows.append(
            {
                **training._asdict(),
                "examples": examples,
                "epsilon": EPSILON,
                "delta": DELTA,
                "batch_size": batch_size,
                "steps": int(count),
                "noise_multiplier": noise,
                "noise_batch_ratio": noise / batch_size,
                "membership_advantage": membership_advantage(examples, batch_size, int(count), float(noise)),
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
        handles.append(Line2D([], [], label=words, **style))
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
