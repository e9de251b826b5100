"""Fit a surface of losses to the trainings of a grid, as the paper words it and as its public code does it."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.loss_curves import fit_power_curves, power_curve
from fedlm.simulations.laws.measured_grid import MeasuredGrid, longest_runs
from fedlm.simulations.laws.measurements import Measurements
from fedlm.simulations.laws.redrawn_losses import redrawn_losses
from fedlm.simulations.laws.smoothing import FALLING, isotonic, rolling_mean, without_flats
from fedlm.simulations.laws.surface import Interpolation, LossSurface
from fedlm.simulations.laws.surface_settings import SurfaceSettings, amount

Floats = NDArray[np.float64]
_DECIMALS_OF_DRAWS = 6


@dataclass(frozen=True)
class _Fitted:
    """Losses and learning rates [M, T, S], and curves [M, S, 3], of all ratios with 0."""

    steps: Floats
    loss: Floats
    rates: Floats
    curves: Floats
    notes: tuple[str, ...]


def fit_surface(measurements: Measurements, settings: SurfaceSettings | None = None) -> LossSurface:
    """Fit the loss by parameters, steps and noise-batch ratio to intermediate losses of trainings.

    Both methods average over seeds, smooth along steps, then along ratios, for each model and learning rate; take the
    least loss of the learning rates; and go on beyond the longest training along E + A / steps^alpha. They differ:

    - "paper" (McKenna et al. 2025, section 3.3) takes a rolling mean before isotonic regression; has ratios above 0
      alone in the regression along ratios; fits E, A and alpha to each model and ratio; interpolates the loss.
    - "code" (google-research/dp_scaling_laws) drops the first steps instead of the rolling mean; has the trainings
      without noise in the regression too; fits one E a model to its trainings without noise from the first kept step
      on, then A and alpha to each ratio; interpolates the logarithm of the loss.

    A ratio without any training of a model is filled in between those that a model has by the logarithm of the ratio,
    as predictions are interpolated; at the ends of the ratios it stays unknown (the code repeats the last one there).

    Args:
      measurements: of one length in tokens; only the longest schedule of each training is used.
      settings: of the method "paper" or "code".

    Raises:
      DataError: they are too few, or differ in what a grid has no axis for.
    """
    settings = settings or SurfaceSettings()
    grid = longest_runs(measurements, settings.batch_size)
    fitted = _fitted(_mean(grid.loss, axis=3), grid, settings)
    notes = [*grid.notes, *fitted.notes]
    draws = []
    if settings.draws:
        smooth = without_flats(_smoothed(_mean(grid.loss, axis=3), grid, settings, np.arange(len(grid.steps))))
        relative = fitted.loss / _fitted(smooth, grid, settings).loss
        redrawn = redrawn_losses(grid, smooth, settings.draws, settings.seed)
        draws = [_fitted(drawn, grid, settings).loss * relative for drawn in redrawn]
        if len(grid.seeds) == 1:
            notes.append("There is one seed, so that bands leave out the spread between seeds.")
    last = np.where(np.isfinite(grid.loss), grid.steps, -np.inf).max(axis=(1, 3, 4))
    return surface_of(grid, fitted, draws, float(last[np.isfinite(last)].min()), settings, notes)


def surface_of(
    grid: MeasuredGrid,
    fitted: _Fitted,
    draws: list[Floats],
    measured_steps: float,
    settings: SurfaceSettings,
    notes: list[str],
) -> LossSurface:
    """Put losses of all ratios, with 0, into a surface that has those without noise apart."""
    noisy = grid.ratios > 0
    quiet = fitted.loss[..., ~noisy]
    unknown = np.full(fitted.loss.shape[:2], np.nan)
    drawn = np.round(np.array(draws).reshape(len(draws), *fitted.loss.shape), _DECIMALS_OF_DRAWS)
    return LossSurface(
        models=grid.models,
        parameters=grid.parameters,
        steps=fitted.steps,
        noise_batch_ratios=grid.ratios[noisy],
        loss=fitted.loss[..., noisy],
        noiseless=unknown if noisy.all() else quiet[..., 0],
        learning_rates=fitted.rates[..., noisy],
        noiseless_learning_rates=unknown if noisy.all() else fitted.rates[..., 0],
        curves=np.concatenate([np.full((len(grid.models), 1, 3), np.nan)] * int(noisy.all()) + [fitted.curves], axis=1),
        measured_steps=measured_steps,
        batch_size=grid.batch_size,
        length=grid.length,
        method=settings.method,
        interpolation=settings.interpolation,
        draws=drawn[..., noisy],
        noiseless_draws=np.broadcast_to(np.nan, drawn.shape[:3]) if noisy.all() else drawn[..., 0],
        notes=tuple(notes),
    )


def _fitted(losses: Floats, grid: MeasuredGrid, settings: SurfaceSettings) -> _Fitted:
    """Fit losses [M, R, S, T] of trainings, means over seeds."""
    kept = _kept_steps(grid, settings)
    smooth = _smoothed(losses, grid, settings, kept)
    unknown = ~np.isfinite(smooth).any(axis=1)
    rate = np.argmin(np.where(np.isnan(smooth), np.inf, smooth), axis=1)
    best = np.where(unknown, np.nan, np.take_along_axis(smooth, rate[:, None], axis=1)[:, 0])
    rates = np.where(unknown, np.nan, grid.learning_rates[rate])
    steps = grid.steps[kept]
    curves, notes = _curves(best, steps, np.gradient(kept.astype(float)), grid, settings)
    beyond = steps[-1] * 2.0 ** np.arange(1, settings.doublings + 1)
    steps = np.append(steps, beyond)
    best, rates = (np.pad(part, [(0, 0), (0, 0), (0, len(beyond))], constant_values=np.nan) for part in (best, rates))
    best = _between(best, np.log(steps), "linear")
    best = np.where(np.isnan(best) & (steps > _last_step(best, steps)), power_curve(curves, steps), best)
    rates = _nearest_before(rates)
    loss, rates = np.moveaxis(best, 1, 2), np.moveaxis(rates, 1, 2)
    noisy = grid.ratios > 0
    missing = np.isnan(loss[..., noisy]).any()
    if missing:
        logs = np.log(grid.ratios[noisy])
        loss[..., noisy] = _between(loss[..., noisy], logs, settings.interpolation)
        rates[..., noisy] = np.exp(_between(np.log(rates[..., noisy]), logs, "linear"))
    return _Fitted(steps, loss, rates, curves, notes)


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
        regressed = grid.ratios > 0
    else:
        losses = losses[..., kept[0] :]
        kept = kept - kept[0]
        regressed = grid.ratios >= 0
    smooth = FALLING[settings.smoothing](losses)[..., kept]
    if settings.smoothing != "none":
        by_ratio = isotonic(np.moveaxis(smooth[:, :, regressed], 2, -1), increasing=True)
        smooth[:, :, regressed] = np.moveaxis(by_ratio, -1, 2)
    return smooth


def _curves(
    best: Floats, steps: Floats, weights: Floats, grid: MeasuredGrid, settings: SurfaceSettings
) -> tuple[Floats, tuple[str, ...]]:
    """Fit E + A / steps^alpha to losses [M, S, T] of each model and ratio: float64 [M, S, 3]."""
    late = steps >= amount(settings.extrapolate_from, steps[-1])
    if late.sum() < 3:
        raise DataError(
            f"{late.sum()} blocks end at step {amount(settings.extrapolate_from, steps[-1]):g} or later, but three are "
            "needed to say how the loss goes on: choose an earlier step with --extrapolate-from"
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


def _between(values: Floats, at: Floats, interpolation: Interpolation) -> Floats:
    """Fill NaN that lie between known values along the last axis, linearly or on monotone cubics in `at`."""
    rows = values.reshape(-1, values.shape[-1]).copy()
    known = np.isfinite(rows)
    for row, has in zip(rows, known, strict=True):
        if has.sum() > 1 and not has.all():
            if interpolation == "linear":
                row[~has] = np.interp(at[~has], at[has], row[has], left=np.nan, right=np.nan)
            else:
                row[~has] = PchipInterpolator(at[has], row[has], extrapolate=False)(at[~has])
    return rows.reshape(values.shape)


def _last_step(values: Floats, steps: Floats) -> Floats:
    """Return the last step with a known value along the last axis, which is kept with length 1."""
    return np.where(np.isfinite(values), steps, -np.inf).max(axis=-1, keepdims=True)


def _nearest_before(values: Floats) -> Floats:
    """Fill NaN with the last known value before them along the last axis."""
    place = np.where(np.isfinite(values), np.arange(values.shape[-1]), 0)
    return np.take_along_axis(values, np.maximum.accumulate(place, axis=-1), axis=-1)


def _mean(losses: Floats, axis: int) -> Floats:
    """Average over an axis what is known; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(losses, axis=axis))
