"""The best training for given budgets, and all that are as good within one percent, among those of equal compute."""

import functools
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlm.fl_core.privacy.accounting.noise_search import Training, least_noise
from fedlm.simulations.laws.figures.table import Progress, Table, no_progress, table_of
from fedlm.simulations.laws.planning.central_planner import FLOPS, Budget, Planner
from fedlm.simulations.laws.planning.configurations import Configurations
from fedlm.simulations.laws.surface.loss_surface import LossSurface

Floats = NDArray[np.float64]
EXAMPLES, EPSILONS, DELTA = (1e6, 1e7, 1e8, 1e9), (1.0, 4.0, 16.0, 64.0), 1e-8
PUBLISHED_COMPUTES = (1e17, 1e19, 1e21, 1e23)


class TrainingSearch:
    """Finds the best training of budgets, each once.

    Args:
      surface: that predicts losses.
      computes: how many computes a line of a picture has.
    """

    def __init__(self, surface: LossSurface, computes: int = 60):
        self.surface = surface
        self._computes = computes
        self._planner = Planner(surface, surface.length)
        self._found: dict[Budget, dict[str, Any]] = {}

    @property
    def computes(self) -> Floats:
        """The computes of a line, float64, ascending."""
        return computes_of(self.surface, self._computes)

    def candidates(self, budget: Budget) -> Configurations:
        """List trainings of a compute, some ten thousand; see `Planner.configurations`."""
        return self._planner.configurations(budget)

    def noise_batch_ratio(self, budget: Budget, batch_size: float, steps: float) -> float:
        """Look the noise-batch ratio of an epsilon up; see `noise_table.TABLE_ERROR`."""
        table = self._planner.table(budget.epsilon, budget.delta)
        return table.noise_multiplier(budget.examples, batch_size, steps).item() / batch_size

    def best(self, budget: Budget) -> dict[str, Any]:
        """Describe the best training: its choices, loss and band, and from where to where each choice is as good.

        `limits` says at which ends of the grid it lies, where a larger grid might have a better one. Numbers are NaN
        where the surface has no loss for any training of this budget.
        """
        if budget not in self._found:
            self._found[budget] = budget._asdict() | _best(self.surface, self.candidates(budget))
        return self._found[budget]

    def by_compute(
        self, examples: Iterable[float], epsilons: Iterable[float] = EPSILONS, progress: Progress = no_progress
    ) -> Table:
        """Tabulate the best trainings of every combination of budgets, those of compute next to each other."""
        return self.table(grid_of(self.computes, examples, epsilons), progress)

    def table(self, several: Iterable[Budget], progress: Progress = no_progress) -> Table:
        """Tabulate the best training of each of several budgets."""
        several = list(several)
        rows = []
        for done, budget in enumerate(several, 1):
            rows.append(self.best(budget))
            progress(done, len(several))
        return table_of(rows)


def _best(surface: LossSurface, found: Configurations) -> dict[str, Any]:
    best = found.best()
    if best is None:
        return dict.fromkeys(_NUMBERS, np.nan) | {"limits": "outside the grid"}
    good = found.near_best()
    low, high = surface.band(*(values[best] for values in (found.parameters, found.steps, found.noise_batch_ratio)))
    row: dict[str, Any] = {}
    for name in ("parameters", "batch_size", "steps"):
        values = getattr(found, name)
        row |= {name: values[best], f"{name}_low": values[good].min(), f"{name}_high": values[good].max()}
    return row | {
        "noise_batch_ratio": found.noise_batch_ratio[best],
        "noise_multiplier": found.noise_batch_ratio[best] * found.batch_size[best],
        "tokens_per_parameter": found.batch_size[best] * found.steps[best] * surface.length / found.parameters[best],
        "loss": found.loss[best],
        "loss_low": low.item(),
        "loss_high": high.item(),
        "limits": _limits(surface, found, best),
    }


def _limits(surface: LossSurface, found: Configurations, best: int) -> str:
    """Name the ends of the grid that the best training lies at."""
    near = 1.2
    parameters, steps, ratio = found.parameters[best], found.steps[best], found.noise_batch_ratio[best]
    ends = {
        "smallest model": parameters <= surface.parameters[0] * 1.02,
        "largest model": parameters >= surface.parameters[-1] / 1.02,
        "fewest steps": steps <= surface.steps[0] * near,
        "most steps": steps >= surface.steps[-1] / near,
        "least noise": ratio <= surface.noise_batch_ratios[0] * near,
        "most noise": ratio >= surface.noise_batch_ratios[-1] / near,
    }
    return ", ".join(name for name, here in ends.items() if here)


_NUMBERS = (
    *(f"{name}{end}" for name in ("parameters", "batch_size", "steps") for end in ("", "_low", "_high")),
    *("noise_batch_ratio", "noise_multiplier", "tokens_per_parameter", "loss", "loss_low", "loss_high"),
)


def computes_of(surface: LossSurface, count: int) -> Floats:
    """Choose computes in reach, from the smallest model in few steps of 1,024 examples to the largest in all measured
    steps of 2^20 (McKenna et al.'s code), float64 [count]."""
    unit = FLOPS * surface.length
    least = unit * surface.parameters[0] * surface.steps[0] * 1024
    return np.geomspace(least, unit * surface.parameters[-1] * surface.measured_steps * 2**20, count)


def shown_computes(surface: LossSurface) -> tuple[float, ...]:
    """Choose four computes to compare, the second of which stands for all: the paper's where the surface has them."""
    least, most = computes_of(surface, 2)
    if least <= PUBLISHED_COMPUTES[0] and PUBLISHED_COMPUTES[-1] <= most:
        return PUBLISHED_COMPUTES
    return tuple(float(f"{compute:.1g}") for compute in np.geomspace(least, most, 8)[1::2])


def grid_of(computes: Iterable[float], examples: Iterable[float], epsilons: Iterable[float]) -> list[Budget]:
    """List all combinations of budgets at `DELTA`, those of compute next to each other."""
    return [Budget(*both, DELTA, float(c)) for both, c in product(product(examples, epsilons), computes)]


def noise_multipliers(
    probability: ArrayLike, steps: ArrayLike, epsilon: ArrayLike, delta: ArrayLike
) -> NDArray[np.float64]:
    """Find the noise of DP-SGD with Poisson sampling for arrays of trainings, to a part in ten thousand.

    Args:
      probability: with which an example is in a step, below 1.
      steps: of a training.
      epsilon: that may be spent, for an example that is added or removed.
      delta: at which.

    Returns:
      float64 of the shape that the arguments have together, in clip norms.
    """
    shaped = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in (probability, steps, epsilon, delta)))
    rows = zip(*(one.ravel().tolist() for one in shaped), strict=True)
    return np.array([_noise_multiplier(*row) for row in rows]).reshape(shaped[0].shape)


@functools.lru_cache(maxsize=1 << 14)
def _noise_multiplier(probability: float, steps: float, epsilon: float, delta: float) -> float:
    return least_noise(Training(probability, round(steps), epsilon, delta))
