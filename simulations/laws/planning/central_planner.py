"""Planning a private training by measured laws: the model, batch and steps with which a budget buys the least loss.

As in McKenna et al. 2025, "Scaling Laws for Differentially Private Language Models", section 3.4: of all trainings that
spend the compute budget, the noise that epsilon asks for gives the noise-batch ratio, and that the loss.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.promise.noise_table import NoiseTable, make_noise_table
from fedlm.simulations.laws.planning.configurations import (
    INSIDE,
    NEAR,
    Configurations,
    Doubled,
    doubled,
    measured_models,
    saturates_at,
    sizes_between,
)
from fedlm.simulations.laws.surface.loss_surface import LossSurface

FLOPS = 6.0
"""For each parameter and token (Kaplan et al. 2020); what clipping and noise take is left out."""
UNCOUNTED_VOCABULARY = (
    "what the vocabulary tells is not counted: it is covered where it is public, or where it was made with an epsilon "
    "of its own, which a run adds"
)
"""Said of the guarantee of a plan that is made without looking at data."""
_BATCHES, _BUDGETS = 51, 61


class Budget(NamedTuple):
    """What a training may use.

    Attributes:
      examples: N, to draw from, of which each is one person's.
      epsilon: that may be spent, for an example that is added or removed; infinite for a training without privacy.
      delta: at which.
      compute: C, in floating-point operations.
    """

    examples: float
    epsilon: float
    delta: float
    compute: float


@dataclass(frozen=True, eq=False)
class Planner:
    """What plans have in common.

    Attributes:
      surface: the measured loss.
      length: tokens of an example.
    """

    surface: LossSurface
    length: int

    @functools.cached_property
    def _tables(self) -> dict[tuple[float, float], NoiseTable]:
        return {}

    def table(self, epsilon: float, delta: float) -> NoiseTable:
        """Return the noise multipliers of an epsilon and delta, made once."""
        if (epsilon, delta) not in self._tables:
            steps = float(self.surface.steps[0]), float(self.surface.steps[-1])
            made = make_noise_table(epsilon, delta, steps, steps[1])
            self._tables[epsilon, delta] = made
        return self._tables[epsilon, delta]

    def configurations(self, budget: Budget) -> Configurations:
        """List trainings that spend the compute budget, some ten thousand, and predict their losses.

        Model sizes lie between those that were measured, and steps between those of the surface. Without privacy the
        batch is the measured one, for what a larger one gains was not measured. With privacy the noise is what epsilon
        asks for, or the least that was measured, which may be more.
        """
        sizes, steps = sizes_between(self.surface), self.surface.steps
        private = math.isfinite(budget.epsilon)
        drawn = budget.compute / (FLOPS * self.length * sizes)  # examples, in all steps
        least, most = np.maximum(drawn / steps[-1], 1.0), np.minimum(drawn / steps[0], budget.examples)
        if not private:
            measured = np.full(len(sizes), float(self.surface.batch_size))
            least, most = np.maximum(least, measured), np.where(drawn / steps[0] >= measured, measured, 0.0)
        fits = least <= most
        # Both ends are among them, so that who has more examples finds no less than who has few.
        batch_size = np.geomspace(least[fits], most[fits], _BATCHES if private else 1, axis=-1)
        parameters = np.repeat(sizes[fits], batch_size.shape[-1])
        times = np.clip((drawn[fits, None] / batch_size).ravel(), steps[0], steps[-1])
        batch_size, ratio = batch_size.ravel(), np.zeros(len(times))
        if private and len(times):
            table = self.table(budget.epsilon, budget.delta)
            asked = table.noise_multiplier(budget.examples, batch_size, times) / batch_size
            ratio = self.surface.with_measured_noise(asked)
        return Configurations(parameters, batch_size, times, ratio, self.surface.predict(parameters, times, ratio))

    def least_loss(self, budget: Budget) -> float:
        """Predict the loss of the best training; NaN where none is within the measured grid."""
        return self.configurations(budget).least_loss()

    def by_compute(self, budget: Budget) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict the best loss of budgets of less and more compute, from the least to the most that the grid has
        trainings of: computes, ascending, and losses, NaN outside the grid."""
        surface, tokens = self.surface, FLOPS * self.length
        least = tokens * surface.parameters[0] * surface.steps[0]
        most = tokens * surface.parameters[-1] * surface.steps[-1] * budget.examples
        computes = np.geomspace(least, most, _BUDGETS)
        return computes, np.array([self.least_loss(budget._replace(compute=float(one))) for one in computes])


@dataclass(frozen=True, eq=False)
class Plan:
    """The best training of a budget, and what lies around it.

    Attributes:
      budget: what it may use.
      length: tokens of an example.
      best: the best of the configurations, by names; its noise is read off a table.
      near: between which values the configurations lie whose loss is near the best, by names.
      considered: configurations within the grid.
      doubled: the best when a part of the budget is doubled, by name.
      saturating_compute: beyond which compute buys next to nothing.
      saturating_steps: of the best training of that compute.
      cheaper: a compute below the budget's whose best training has less loss, and that loss; None where there is none.
    """

    budget: Budget
    length: int
    best: dict[str, float]
    near: dict[str, tuple[float, float]]
    considered: int
    doubled: dict[str, Doubled]
    saturating_compute: float
    saturating_steps: float
    cheaper: tuple[float, float] | None


def make_plan(planner: Planner, budget: Budget, near: float = NEAR) -> Plan:
    """Find the best training for a budget.

    Raises:
      ConfigurationError: no training that spends the budget lies within the measured grid.
    """
    for name, value in budget._asdict().items():
        if not value > 0 or (name != "epsilon" and not math.isfinite(value)):
            raise ConfigurationError(f"{setting(name)} is {value:g}, but must be positive and finite")
    found = planner.configurations(budget)
    best = found.best()
    if best is None:
        raise ConfigurationError(_outside(planner, budget, found))
    computes, losses = planner.by_compute(budget)
    enough, its_steps = _saturation(planner, budget, saturates_at(losses, near), computes)
    return Plan(
        budget=budget,
        length=planner.length,
        best=found.at(best),
        near=found.ranges(found.near_best(near)),
        considered=int(found.known.sum()),
        doubled=doubled(planner.configurations, budget, planner.surface),
        saturating_compute=enough,
        saturating_steps=its_steps,
        cheaper=_cheaper(computes, losses, budget.compute, found.least_loss()),
    )


def _saturation(
    planner: Planner, budget: Budget, place: int | None, computes: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the compute that saturates a budget, and the best training's steps; NaN where there is none."""
    if place is None:
        return math.nan, math.nan
    found = planner.configurations(budget._replace(compute=float(computes[place])))
    best = found.best()
    return float(computes[place]), math.nan if best is None else float(found.steps[best])


def _cheaper(
    computes: NDArray[np.float64], losses: NDArray[np.float64], compute: float, loss: float
) -> tuple[float, float] | None:
    better = np.flatnonzero((computes < compute) & (losses < loss))
    if not len(better):
        return None
    best = better[np.argmin(losses[better])]
    return float(computes[best]), float(losses[best])


def _outside(planner: Planner, budget: Budget, found: Configurations) -> str:
    """Say why there is no plan."""
    surface = planner.surface
    if len(found.loss):
        return found.noise_outside(surface, "compute or number of examples")
    return (
        f"{setting('compute')} is {budget.compute:g}, but no training of {measured_models(surface)}, "
        f"{surface.steps[0]:g} to {surface.steps[-1]:g} steps and at most {budget.examples:g} examples of "
        f"{planner.length} tokens in a step spends it; give another compute, or laws of other sizes"
    )


def note_of_noise(epsilon: float) -> str:
    """Say of a training with the least noise that was measured that epsilon asks for less."""
    return (
        f"epsilon {epsilon:g} allows less noise than was measured: this training has the least noise that was "
        "measured, and spends less epsilon; what less noise would gain is not known"
    )


def notes_of(surface: LossSurface, parameters: float, batch_size: float, steps: float, *, length: int) -> list[str]:
    """Say in what a training goes beyond what was measured, a sentence each."""
    notes = []
    if steps > surface.measured_steps:
        notes.append(
            f"extrapolated: the loss at {steps:.4g} steps goes on along the curves of trainings of "
            f"{surface.measured_steps:.4g} steps"
        )
    if batch_size < surface.batch_size:
        notes.append(
            f"batches are smaller than the {surface.batch_size} examples of the measured trainings, so gradients vary "
            "more; the predicted loss leaves that out"
        )
    if length != surface.length:
        notes.append(
            f"extrapolated: examples have {length} tokens, and {surface.length} in the trainings that were measured"
        )
    if not surface.parameters[0] * (1 + INSIDE) < parameters < surface.parameters[-1] * (1 - 2 * INSIDE):
        notes.append("the best size lies at the end of those that were measured: a smaller or larger one may be better")
    return notes
