"""The loss of private training by model size, steps and noise: a grid of fitted values, interpolated between them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import PchipInterpolator, RegularGridInterpolator

Method = Literal["paper", "code", "two-stage"]
Interpolation = Literal["linear", "monotone-cubic"]
Floats = NDArray[np.float64]

_DENSER = 8  # points of a monotone cubic for each of the grid


@dataclass(frozen=True)
class LossSurface:
    """Loss by parameters, steps and noise-batch ratio, as fitted to the trainings of a grid.

    Between the grid's points the loss (with the method "code" its logarithm) follows monotone cubics along the
    logarithms of parameters and ratios and is linear in that of the steps, or is linear in all three, as published.
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
      interpolation: how predictions lie between the points.
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
    interpolation: Interpolation = "monotone-cubic"
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
        return self._predicted(self.interpolation, _point(parameters, steps, noise_batch_ratio), extrapolate)

    def with_measured_noise(self, noise_batch_ratio: ArrayLike) -> Floats:
        """Raise ratios to the least that was measured: more noise than a promise asks for keeps the promise."""
        return np.maximum(noise_batch_ratio, self.noise_batch_ratios[:1].max(initial=0.0))

    def predict_draws(self, parameters: ArrayLike, steps: ArrayLike, noise_batch_ratio: ArrayLike) -> Floats:
        """Predict the loss linearly between points, once by each draw: float64 [D, ...]."""
        losses, noiseless = np.moveaxis(self.draws, 0, -1), np.moveaxis(self.noiseless_draws, 0, -1)
        point = _point(parameters, steps, noise_batch_ratio)
        return np.moveaxis(self._at(losses, noiseless, self._axes, point, extrapolate=False), -1, 0)

    def band(
        self, parameters: ArrayLike, steps: ArrayLike, noise_batch_ratio: ArrayLike, level: float = 0.9
    ) -> tuple[Floats, Floats]:
        """Bound what `predict` returns: the mean loss of such trainings lies in the band with probability `level`.

        It lies between quantiles of the draws (percentile bootstrap). Between points it also holds what either way of
        interpolating predicts, and reaches half their difference beyond the monotone cubic. That the loss goes on along
        its curve beyond the longest training is taken for granted.

        Returns:
          Its lower and upper end, float64 of the broadcast shape; NaN outside the grid, and where there are no draws.
        """
        at = _point(parameters, steps, noise_batch_ratio)
        linear, cubic = self._predicted("linear", at), self._predicted("monotone-cubic", at)
        if not len(self.draws):
            return np.full_like(linear, np.nan), np.full_like(linear, np.nan)
        tails = [(1 - level) / 2, (1 + level) / 2]
        # Of few draws, the usual quantiles lie too far inside.
        low, high = np.quantile(self.predict_draws(*at), tails, axis=0, method="weibull")
        beyond = np.abs(cubic - linear) / 2
        return np.minimum(linear, cubic - beyond) * low / linear, np.maximum(linear, cubic + beyond) * high / linear

    def learning_rate(self, parameters: ArrayLike, steps: ArrayLike, noise_batch_ratio: ArrayLike) -> Floats:
        """Return the best learning rate: float64 of the broadcast shape, NaN outside the grid.

        With the method "two-stage" its logarithm is interpolated; else it is the measured one at the nearest point.
        """
        kind, to, back = ("linear", np.log, np.exp) if self.method == "two-stage" else ("nearest", np.array, np.array)
        point = _point(parameters, steps, noise_batch_ratio)
        noisy = _interpolated(to(self.learning_rates)[..., None], self._axes, point, extrapolate=False, kind=kind)
        quiet = _interpolated(
            to(self.noiseless_learning_rates)[..., None], self._axes[:2], point[:2], extrapolate=False, kind=kind
        )
        return np.asarray(back(np.where(point[2] == 0, quiet[..., 0], noisy[..., 0])))

    @property
    def _axes(self) -> tuple[Floats, Floats, Floats]:
        return self.parameters, self.steps, self.noise_batch_ratios

    @functools.cached_property
    def _dense(self) -> tuple[Floats, Floats, tuple[Floats, Floats, Floats]]:
        """Losses with and without noise on a grid with points of the monotone cubics in between, and its axes."""
        sizes, times, ratios = self._axes
        losses, dense_ratios = _denser(self.loss, 2, ratios)
        losses, dense_sizes = _denser(losses, 0, sizes)
        noiseless, _ = _denser(self.noiseless, 0, sizes)
        return losses, noiseless, (dense_sizes, times, dense_ratios)

    def _predicted(self, interpolation: Interpolation, point: tuple[Floats, ...], extrapolate: bool = False) -> Floats:
        losses, noiseless, axes = self.loss, self.noiseless, self._axes
        if interpolation == "monotone-cubic":
            losses, noiseless, axes = self._dense
        return self._at(losses[..., None], noiseless[..., None], axes, point, extrapolate=extrapolate)[..., 0]

    def _at(
        self, losses: Floats, noiseless: Floats, axes: Sequence[Floats], point: Sequence[Floats], *, extrapolate: bool
    ) -> Floats:
        """Interpolate grids [M, T, S, D] and [M, T, D] linearly: float64 [..., D]."""
        logarithmic = self.method == "code"
        quiet = _interpolated(
            np.log(noiseless) if logarithmic else noiseless, axes[:2], point[:2], extrapolate=extrapolate
        )
        noisy = _interpolated(np.log(losses) if logarithmic else losses, axes, point, extrapolate=extrapolate)
        found = np.where(point[2][..., None] == 0, quiet, noisy)
        return np.exp(found) if logarithmic else found


def _point(*coordinates: ArrayLike) -> tuple[Floats, ...]:
    return tuple(np.broadcast_arrays(*(np.asarray(axis, np.float64) for axis in coordinates)))


def _denser(values: Floats, axis: int, at: Floats) -> tuple[Floats, Floats]:
    """Put points of monotone cubics in the logarithms between those of a grid's axis; NaN are left out of a row."""
    if len(at) < 2:
        return values, at
    log = np.log(at)
    within = np.linspace(log[:-1], log[1:], _DENSER, endpoint=False, axis=-1).ravel()
    dense = np.append(within, log[-1])
    rows = np.moveaxis(values, axis, -1)
    found = np.empty((*rows.shape[:-1], len(dense)))
    if np.isfinite(rows).all():
        found[:] = PchipInterpolator(log, rows, axis=-1)(dense)
    else:
        for row, place in zip(rows.reshape(-1, len(log)), np.ndindex(rows.shape[:-1]), strict=True):
            known = np.isfinite(row)
            kept = PchipInterpolator(log[known], row[known], extrapolate=False)(dense) if known.sum() > 1 else np.nan
            found[place] = kept
            found[place][::_DENSER] = row
    points = np.append(np.repeat(at[:-1], _DENSER), at[-1])
    fractions = np.append(within - np.repeat(log[:-1], _DENSER), 0.0)
    return np.moveaxis(found, -1, axis), points * np.exp(fractions)


def _interpolated(
    values: Floats, axes: Sequence[Floats], point: Sequence[Floats], *, extrapolate: bool, kind: str = "linear"
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
    return np.where(outside[..., None], np.nan, found.reshape(*outside.shape, found.shape[-1]))
