"""The loss of private training by model size, steps and noise: a grid of fitted values, interpolated between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import RegularGridInterpolator

Method = Literal["paper", "code", "two-stage"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LossSurface:
    """Loss by parameters, steps and noise-batch ratio, as fitted to the trainings of a grid.

    Between the grid's points the loss (with the method "code" its logarithm) is linear in the logarithms of the three.
    Source: McKenna et al. 2025, "Scaling Laws for Differentially Private Language Models", section 3.3.

    Attributes:
      models: [M] names, from the smallest to the largest.
      parameters: float64 [M], all of each model's parameters, ascending.
      steps: float64 [T], ascending.
      noise_batch_ratios: float64 [S], ascending, all above 0.
      loss: float64 [M, T, S], in nats per predicted token; NaN where neither measured nor filled in.
      noiseless: float64 [M, T], the loss without noise.
      learning_rates: float64 [M, T, S], those of the least loss.
      noiseless_learning_rates: float64 [M, T].
      curves: float64 [M, 1 + S, 3], E, A and alpha of the curve E + A / steps^alpha by which each model and ratio, the
        first of which is 0, goes on beyond `measured_steps`.
      measured_steps: the last step that was measured; beyond it the loss is extrapolated.
      batch_size: examples of a step in the trainings.
      length: tokens that the models read of an example.
      method: how it was fitted, see `fit_surface`.
      draws: float64 [D, M, T, S], the loss fitted again to measurements drawn anew; D may be 0.
      noiseless_draws: float64 [D, M, T].
      notes: what was missing, left out or filled in, a sentence each.
    """

    models: tuple[str, ...]
    parameters: Floats
    steps: Floats
    noise_batch_ratios: Floats
    loss: Floats
    noiseless: Floats
    learning_rates: Floats
    noiseless_learning_rates: Floats
    curves: Floats
    measured_steps: float
    batch_size: int
    length: int
    method: Method
    draws: Floats
    noiseless_draws: Floats
    notes: tuple[str, ...] = ()

    def predict(
        self, parameters: ArrayLike, steps: ArrayLike, noise_batch_ratio: ArrayLike, extrapolate: bool = False
    ) -> Floats:
        """Predict the loss.

        Args:
          parameters: of the model, any shape that broadcasts with the others.
          steps: of the training.
          noise_batch_ratio: standard deviation of the noise on a step's mean gradient in clip norms; 0 without noise.
          extrapolate: go on linearly beyond the grid, from the two values at its edge, instead of NaN.

        Returns:
          float64 of the broadcast shape, nats per predicted token; NaN outside the grid.
        """
        return self._at(
            self.loss[..., None], self.noiseless[..., None], parameters, steps, noise_batch_ratio, extrapolate
        )[..., 0]

    def predict_draws(
        self, parameters: ArrayLike, steps: ArrayLike, noise_batch_ratio: ArrayLike, extrapolate: bool = False
    ) -> Floats:
        """Predict the loss as `predict` does, once by each draw: float64 [D, ...]."""
        losses, noiseless = np.moveaxis(self.draws, 0, -1), np.moveaxis(self.noiseless_draws, 0, -1)
        return np.moveaxis(self._at(losses, noiseless, parameters, steps, noise_batch_ratio, extrapolate), -1, 0)

    def band(
        self,
        parameters: ArrayLike,
        steps: ArrayLike,
        noise_batch_ratio: ArrayLike,
        level: float = 0.9,
        extrapolate: bool = False,
    ) -> tuple[Floats, Floats]:
        """Bound what `predict` returns: the mean loss of such trainings lies in the band with probability `level`.

        It is the basic bootstrap interval of the logarithm of the loss: how far draws lie from the fit they were drawn
        around stands for how far the fit lies from the truth.

        Returns:
          Its lower and upper end, float64 of the broadcast shape; NaN outside the grid, and where there are no draws.
        """
        loss = self.predict(parameters, steps, noise_batch_ratio, extrapolate)
        if not len(self.draws):
            return np.full_like(loss, np.nan), np.full_like(loss, np.nan)
        tails = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.quantile(self.predict_draws(parameters, steps, noise_batch_ratio, extrapolate), tails, axis=0)
        return loss**2 / high, loss**2 / low

    def learning_rate(self, parameters: ArrayLike, steps: ArrayLike, noise_batch_ratio: ArrayLike) -> Floats:
        """Return the best learning rate: float64 of the broadcast shape, NaN outside the grid.

        With the method "two-stage" its logarithm is interpolated; else it is the measured one at the nearest point.
        """
        rates, noiseless = np.log(self.learning_rates), np.log(self.noiseless_learning_rates)
        kind = "linear" if self.method == "two-stage" else "nearest"
        point = np.broadcast_arrays(*(np.asarray(axis, float) for axis in (parameters, steps, noise_batch_ratio)))
        noisy = _interpolated(rates[..., None], self._axes, point, False, kind)
        quiet = _interpolated(noiseless[..., None], self._axes[:2], point[:2], False, kind)
        return np.exp(np.where(point[2] == 0, quiet[..., 0], noisy[..., 0]))

    @property
    def _axes(self) -> tuple[Floats, Floats, Floats]:
        return self.parameters, self.steps, self.noise_batch_ratios

    def _at(
        self,
        losses: Floats,
        noiseless: Floats,
        parameters: ArrayLike,
        steps: ArrayLike,
        noise_batch_ratio: ArrayLike,
        extrapolate: bool,
    ) -> Floats:
        """Interpolate grids [M, T, S, D] and [M, T, D]: float64 [..., D]."""
        point = np.broadcast_arrays(*(np.asarray(axis, float) for axis in (parameters, steps, noise_batch_ratio)))
        forward, back = (np.log, np.exp) if self.method == "code" else (np.asarray, np.asarray)
        quiet = _interpolated(forward(noiseless), self._axes[:2], point[:2], extrapolate)
        noisy = _interpolated(forward(losses), self._axes, point, extrapolate)
        return np.asarray(back(np.where(point[2][..., None] == 0, quiet, noisy)))


def _interpolated(
    values: Floats, axes: Sequence[Floats], point: Sequence[Floats], extrapolate: bool, kind: str = "linear"
) -> Floats:
    """Interpolate a grid in the logarithms of its axes; NaN outside it, and where a NaN of the grid has weight.

    Args:
      values: [A, B, ..., D], of the axes' lengths, then of any.
      axes: ascending.
      point: of equal shapes, one for each axis.
      extrapolate: go on beyond the grid instead of NaN; what is not above 0 is NaN all the same.
      kind: "linear" or "nearest".

    Returns:
      float64 [..., D].
    """
    coordinates = [np.where(at > 0, np.log(np.where(at > 0, at, 1.0)), np.nan) for at in point]
    outside = np.any([np.isnan(at) for at in coordinates], axis=0)
    if not values.size:
        return np.full((*outside.shape, values.shape[-1]), np.nan)
    logs = []
    for number, axis in enumerate(axes):
        log = np.log(axis)
        if len(axis) == 1:  # known at one value alone
            outside |= ~np.isclose(coordinates[number], log[0]) & (not extrapolate)
            log, values = np.append(log, log[0] + 1.0), np.repeat(values, 2, axis=number)
            coordinates[number] = np.broadcast_to(log[0], outside.shape)
        elif not extrapolate:  # a logarithm may be off by its last bit
            inside = np.clip(coordinates[number], log[0], log[-1])
            coordinates[number] = np.where(np.isclose(inside, coordinates[number], 1e-12), inside, coordinates[number])
        logs.append(log)
    at = np.stack([np.where(outside, logs[number][0], axis) for number, axis in enumerate(coordinates)], axis=-1)
    missing = np.isnan(values)

    def interpolator(grid: Floats) -> RegularGridInterpolator:
        return RegularGridInterpolator(logs, grid, kind, bounds_error=False, fill_value=None if extrapolate else np.nan)

    found = interpolator(np.where(missing, 0.0, values))(at)
    if missing.any():
        found = np.where(interpolator(missing.astype(float))(at) == 0, found, np.nan)
    return np.where(outside[..., None], np.nan, found)
