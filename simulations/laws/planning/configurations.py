"""Trainings that a plan chooses among: what they are, what each costs in loss, and which of them are best."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.laws.surface.loss_surface import LossSurface

NEAR = 0.01
"""Relative loss above the best that is as good (McKenna et al. 2025, figure 1)."""
LEVEL = 0.9
"""Of the bands of predicted losses."""
INSIDE = 0.01
"""Part of the sizes' ends that sizes in between stay away from them, as the paper's code has it."""
_SIZES = 100


@dataclass(frozen=True, eq=False)
class Configurations:
    """Trainings: float64 arrays of one length.

    Attributes:
      parameters: M, all of the model's.
      batch_size: B, examples of a step on average; of a federated training, clients of a round.
      steps: T; rounds.
      noise_batch_ratio: noise multiplier over batch size, no less than was measured; 0 without privacy.
      loss: that is predicted; NaN outside the measured grid.
    """

    parameters: NDArray[np.float64]
    batch_size: NDArray[np.float64]
    steps: NDArray[np.float64]
    noise_batch_ratio: NDArray[np.float64]
    loss: NDArray[np.float64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which are within the measured grid, bool."""
        return np.isfinite(self.loss)

    def best(self) -> int | None:
        """Return the number of the one of the least loss; None where all are outside the grid."""
        return int(np.nanargmin(self.loss)) if self.known.any() else None

    def least_loss(self) -> float:
        """Return the least loss; NaN where all are outside the grid."""
        return float(np.nanmin(self.loss)) if self.known.any() else math.nan

    def near_best(self, near: float = NEAR) -> NDArray[np.bool_]:
        """Tell those whose loss is above the least by no more than this part of it, bool."""
        return self.known & (self.loss <= (1 + near) * self.least_loss())

    def at(self, number: int) -> dict[str, float]:
        """Return one of them, by names."""
        return {name: float(values[number]) for name, values in vars(self).items()}

    def ranges(self, chosen: NDArray[np.bool_]) -> dict[str, tuple[float, float]]:
        """Return between which values some of them lie, by names."""
        return {name: (float(values[chosen].min()), float(values[chosen].max())) for name, values in vars(self).items()}

    def noise_outside(self, surface: LossSurface, give: str) -> str:
        """Say that their noise lies outside what was measured, where none is within the grid, and what to give."""
        asked, known = self.noise_batch_ratio, surface.noise_batch_ratios
        ratios = f"{known[0]:.3g} to {known[-1]:.3g}" if len(known) else "0"
        return (
            f"the budget asks for noise-batch ratios of {asked.min():.3g} to {asked.max():.3g}, but of "
            f"{measured_models(surface)} the laws know losses for ratios of {ratios} alone; nothing is planned outside "
            f"what was measured. Give another epsilon, {give}, or laws of other noise"
        )


class Doubled(NamedTuple):
    """What doubling a part of a budget would give.

    Attributes:
      loss: of the best training, which may leave unused what there is more of.
      asks_for_less_noise: whether that training has the least noise that was measured, where less would be enough.
    """

    loss: float
    asks_for_less_noise: bool


def doubled(configurations: Callable[[Any], Configurations], budget: Any, surface: LossSurface) -> dict[str, Doubled]:
    """Predict what doubling each part of a budget would give, all but delta and what is without end, and without
    privacy the number of people, which matters to noise alone.

    Args:
      configurations: lists the trainings of a budget.
      budget: a named tuple of numbers, for which there is a training within the grid.
      surface: by which the losses are predicted.

    Returns:
      What there is by the name of the part.
    """
    fixed = ("delta",) if math.isfinite(budget.epsilon) else ("delta", "examples", "people")
    parts = {name: value for name, value in budget._asdict().items() if name not in fixed and math.isfinite(value)}
    once = configurations(budget).least_loss()

    def of(name: str, value: float) -> Doubled:
        found = configurations(budget._replace(**{name: 2 * value}))
        best = found.best()
        if best is None:
            return Doubled(once, False)
        ratio = found.noise_batch_ratio[best]
        return Doubled(min(once, float(found.loss[best])), bool(0 < ratio <= surface.with_measured_noise(0.0)))

    return {name: of(name, value) for name, value in parts.items()}


def saturates_at(losses: NDArray[np.float64], near: float = NEAR) -> int | None:
    """Return the place of the first loss that is within `near` of the least of all; None where none is known.

    Args:
      losses: float64 [computes], the best of each compute, ascending; NaN where that is outside of the grid.
      near: relative loss above the least that is as good (McKenna et al. 2025, table 2: 1 %).
    """
    return int(np.argmax(losses <= (1 + near) * np.nanmin(losses))) if np.isfinite(losses).any() else None


def measured_models(surface: LossSurface) -> str:
    """Say which sizes were measured."""
    return f"models of {surface.parameters[0]:.3g} to {surface.parameters[-1]:.3g} parameters"


def sizes_between(surface: LossSurface) -> NDArray[np.float64]:
    """List model sizes to try: those that were measured, and some between them."""
    sizes = surface.parameters
    first, last = sizes[0] * (1 + INSIDE), sizes[-1] * (1 - INSIDE)
    return np.unique([*np.geomspace(first, last, _SIZES), *sizes]) if first < last else sizes


def as_json(value: Any) -> Any:
    """Make values JSON-able but for NaN and infinity: records become dictionaries."""
    if hasattr(value, "as_json"):
        return value.as_json()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value


class Prediction(NamedTuple):
    """What laws say of one training.

    Attributes:
      noise_batch_ratio: of its noise, no less than was measured; 0 without privacy.
      loss: in nats per predicted token; NaN outside the measured grid.
      learning_rate: the best one; NaN where none was measured.
      band: lower and upper end of the loss; NaN where the laws have no draws.
    """

    noise_batch_ratio: float
    loss: float
    learning_rate: float
    band: tuple[float, float]

    def refuse_unmeasured(self, parameters: int, times: str) -> None:
        """Refuse what was not measured, as a ConfigurationError; `times` are the steps or rounds in words."""
        if not math.isfinite(self.loss):
            raise ConfigurationError(
                f"the nearest model that can be built has {parameters:,} parameters, and with {times} and a "
                f"noise-batch ratio of {self.noise_batch_ratio:.3g} lies outside what was measured; give another "
                "budget, or other laws"
            )
        if not math.isfinite(self.learning_rate):
            raise ConfigurationError(
                f"no learning rate was measured for {parameters:,} parameters at a noise-batch ratio of "
                f"{self.noise_batch_ratio:.3g}; give another budget, or other laws"
            )


def predict(surface: LossSurface, parameters: int, times: int, noise_batch_ratio: float | None) -> Prediction:
    """Predict the loss of one training of so many steps or rounds; without noise where the ratio is None."""
    ratio = 0.0 if noise_batch_ratio is None else float(surface.with_measured_noise(noise_batch_ratio))
    at = parameters, times, ratio
    low, high = (end.item() for end in surface.band(*at, level=LEVEL))
    return Prediction(ratio, surface.predict(*at).item(), surface.learning_rate(*at).item(), (low, high))
