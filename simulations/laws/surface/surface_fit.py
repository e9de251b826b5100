"""Fit a surface of losses to the trainings of a grid, as the paper words it and as its public code does it."""

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError, setting
from fedlm.simulations.laws.measuring.measurements import Measurements
from fedlm.simulations.laws.surface.fitted_losses import (
    FittedLosses,
    SurfaceSettings,
    amount,
    mean_of_known,
    surface_of,
)
from fedlm.simulations.laws.surface.loss_surface import LossSurface
from fedlm.simulations.laws.surface.measured_grid import MeasuredGrid, longest_runs, redrawn_losses
from fedlm.simulations.laws.surface.smoothing import (
    between,
    fit_power_curves,
    isotonic,
    power_curve,
    rolling_mean,
    without_flats,
)
from fedlm.simulations.laws.surface.two_stages import fit_two_stages

Floats = NDArray[np.float64]


def fit_surface(measurements: Measurements, settings: SurfaceSettings | None = None) -> LossSurface:
    """Fit the loss by parameters, steps and noise-batch ratio to trainings.

    The method "two-stage" is that of `fit_two_stages`. The others take intermediate losses of each training's longest
    schedule. Both average over seeds, smooth along steps, then along ratios, for each model and learning rate; take the
    least loss of the learning rates; and go on beyond the longest training along E + A / steps^alpha, smoothed along
    ratios there too, which is ours: curves of ratios that are fitted apart may cross. They differ:

    - "paper" (McKenna et al. 2025, section 3.3) takes a rolling mean before isotonic regression; has ratios above 0
      alone in the regression along ratios; fits E, A and alpha to each model and ratio; interpolates the loss.
    - "code" (google-research/dp_scaling_laws) drops the first steps instead of the rolling mean; has the trainings
      without noise in the regression too; fits one E a model to its trainings without noise from the first kept step
      on, then A and alpha to each ratio; interpolates the logarithm of the loss.

    A ratio without any training of a model is filled in between those that a model has by the logarithm of the ratio,
    as predictions are interpolated; at the ends of the ratios it stays unknown (the code repeats the last one there).

    Args:
      measurements: of one length in tokens.
      settings: how; the defaults where none are given, which are the published ones but for the interpolation.

    Raises:
      DataError: they are too few, or differ in what a grid has no axis for.
    """
    settings = settings or SurfaceSettings()
    if settings.method == "two-stage":
        return fit_two_stages(measurements, settings)
    grid = longest_runs(measurements, settings.batch_size)
    fitted = _fitted(mean_of_known(grid.loss, 3), grid, settings)
    notes = [*grid.notes, *fitted.notes]
    draws = []
    if settings.draws:
        smooth = without_flats(_smoothed(mean_of_known(grid.loss, 3), grid, settings, np.arange(len(grid.steps))))
        relative = fitted.loss / _fitted(smooth, grid, settings).loss
        redrawn = redrawn_losses(grid, smooth, settings.draws, settings.seed)
        draws = [_fitted(drawn, grid, settings).loss * relative for drawn in redrawn]
        if len(grid.seeds) == 1:
            notes.append("There is one seed, so that bands leave out the spread between seeds.")
    last = np.where(np.isfinite(grid.loss), grid.steps, -np.inf).max(axis=(1, 3, 4))
    measured_steps = float(last[np.isfinite(last)].min())
    return surface_of(grid, fitted, draws, settings, measured_steps=measured_steps, notes=notes)


def _fitted(losses: Floats, grid: MeasuredGrid, settings: SurfaceSettings) -> FittedLosses:
    """Fit losses [M, R, S, T] of trainings, means over seeds."""
    kept = _kept_steps(grid, settings)
    smooth = _smoothed(losses, grid, settings, kept)
    unknown = ~np.isfinite(smooth).any(axis=1)
    rate = np.argmin(np.where(np.isnan(smooth), np.inf, smooth), axis=1)
    best = np.where(unknown, np.nan, np.take_along_axis(smooth, rate[:, None], axis=1)[:, 0])
    rates = np.where(unknown, np.nan, grid.learning_rates[rate])
    steps = grid.steps[kept]
    curves, notes = _curves(best, steps, np.gradient(kept.astype(float)), grid=grid, settings=settings)
    beyond = steps[-1] * 2.0 ** np.arange(1, settings.doublings + 1)
    steps = np.append(steps, beyond)
    best, rates = (np.pad(part, [(0, 0), (0, 0), (0, len(beyond))], constant_values=np.nan) for part in (best, rates))
    best = between(best, np.log(steps), "linear")
    best = np.where(np.isnan(best) & (steps > _last_step(best, steps)), power_curve(curves, steps), best)
    best = _rising_with_noise(best, grid, settings)
    rates = _nearest_before(rates)
    loss, rates = np.moveaxis(best, 1, 2), np.moveaxis(rates, 1, 2)
    noisy = grid.ratios > 0
    missing = np.isnan(loss[..., noisy]).any()
    if missing:
        logs = np.log(grid.ratios[noisy])
        loss[..., noisy] = between(loss[..., noisy], logs, settings.interpolation)
        rates[..., noisy] = np.exp(between(np.log(rates[..., noisy]), logs, "linear"))
    return FittedLosses(steps, loss, rates, curves, notes)


def _kept_steps(grid: MeasuredGrid, settings: SurfaceSettings) -> NDArray[np.int64]:
    """Choose measured steps evenly in their logarithm, with the first and the last: their indices, ascending."""
    first = amount(settings.drop_before, grid.steps[-1]) if settings.method == "code" else 0.0
    usable = np.flatnonzero(grid.steps >= first)
    if len(usable) < 3:
        raise DataError(f"{len(usable)} blocks end at step {first:g} or later, but a fit needs at least 3 of them")
    if len(usable) <= settings.kept_steps:
        return usable
    wanted = np.geomspace(grid.steps[usable[0]], grid.steps[-1], settings.kept_steps)
    places = np.searchsorted((grid.steps[usable[1:]] + grid.steps[usable[:-1]]) / 2, wanted)
    return usable[np.unique(places)]


def _smoothed(losses: Floats, grid: MeasuredGrid, settings: SurfaceSettings, kept: NDArray[np.int64]) -> Floats:
    """Smooth losses [M, R, S, T] along steps, then along ratios at the kept steps: float64 [M, R, S, kept]."""
    if settings.method == "paper":
        losses = rolling_mean(losses, max(1, round(amount(settings.rolling, len(grid.steps)))))
    else:
        losses = losses[..., kept[0] :]
        kept = kept - kept[0]
    return _rising_with_noise(isotonic(losses, increasing=False)[..., kept], grid, settings)


def _rising_with_noise(losses: Floats, grid: MeasuredGrid, settings: SurfaceSettings) -> Floats:
    """Smooth losses [..., S, T] along ratios; what falls with steps still does."""
    regressed = grid.ratios >= 0 if settings.method == "code" else grid.ratios > 0
    smooth = losses.copy()
    smooth[..., regressed, :] = np.moveaxis(isotonic(np.moveaxis(losses[..., regressed, :], -2, -1), True), -1, -2)
    return smooth


def _curves(
    best: Floats, steps: Floats, weights: Floats, *, grid: MeasuredGrid, settings: SurfaceSettings
) -> tuple[Floats, tuple[str, ...]]:
    """Fit E + A / steps^alpha to losses [M, S, T] of each model and ratio: float64 [M, S, 3]."""
    late = steps >= amount(settings.extrapolate_from, steps[-1])
    if late.sum() < 3:
        raise DataError(
            f"{late.sum()} blocks end at step {amount(settings.extrapolate_from, steps[-1]):g} or later, but three are "
            f"needed to say how the loss goes on: choose an earlier step with {setting('extrapolate_from')}"
        )
    if settings.method == "paper":
        return fit_power_curves(steps[late], best[..., late], weights[late]), ()
    without_noise = best[:, 0]
    notes: tuple[str, ...] = ()
    unknown = ~np.isfinite(without_noise).any(axis=-1)
    if grid.ratios[0] > 0 or unknown.any():
        names = grid.models if grid.ratios[0] > 0 else [grid.models[place] for place in np.flatnonzero(unknown)]
        notes = (
            f"There is no training without noise of {', '.join(names)}: E is fitted with the least noise there is.",
        )
        known = np.isfinite(best).any(axis=-1)
        without_noise = best[np.arange(len(best)), np.argmax(known, axis=1)]
    limit = fit_power_curves(steps, without_noise, weights)[:, 0]
    limits = np.broadcast_to(limit[:, None], best.shape[:2])
    return fit_power_curves(steps[late], best[..., late], weights[late], limits), notes


def _last_step(values: Floats, steps: Floats) -> Floats:
    """Return the last step with a known value along the last axis, which is kept with length 1."""
    return np.where(np.isfinite(values), steps, -np.inf).max(axis=-1, keepdims=True)


def _nearest_before(values: Floats) -> Floats:
    """Fill NaN with the last known value before them along the last axis."""
    place = np.where(np.isfinite(values), np.arange(values.shape[-1]), 0)
    return np.take_along_axis(values, np.maximum.accumulate(place, axis=-1), axis=-1)
