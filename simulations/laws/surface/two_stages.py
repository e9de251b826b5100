"""Fit a surface of losses in two stages, as the VaultGemma report has it: by separate trainings of several lengths."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.forms.fitting import fit_form
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.measuring.measurements import Measurements, make_measurements
from fedlm.simulations.laws.surface.fitted_losses import FittedLosses, SurfaceSettings, mean_of_known, surface_of
from fedlm.simulations.laws.surface.loss_surface import LossSurface
from fedlm.simulations.laws.surface.measured_grid import MeasuredGrid, final_losses, redrawn_losses
from fedlm.simulations.laws.surface.smoothing import between, fit_power_curves, isotonic, parabola_vertices, power_curve

Floats = NDArray[np.float64]

_LENGTHS = 3  # E, A and alpha
_STEPS = 32  # of the grid, from the shortest training to the longest


def fit_two_stages(measurements: Measurements, settings: SurfaceSettings) -> LossSurface:
    """Fit the loss by parameters, steps and noise-batch ratio to final losses alone.

    First, for each model, ratio and length of training, a parabola in the logarithm of the learning rate gives the best
    rate and the loss there; and for each model and ratio E + A / steps^alpha goes through the losses of its lengths.
    Losses on the way are not used, since their schedules have not ended. Then the surface is fitted to the curves on a
    dense grid of steps, or with `settings.dense_form` to a parametric law that is fitted to the curves, on a grid that
    is dense in sizes and ratios too.

    Source: the VaultGemma report (2025), section 6.

    Raises:
      DataError: there are fewer than three lengths, or the measurements differ in what a grid has no axis for.
    """
    grid = final_losses(measurements, settings.batch_size)
    if len(grid.steps) < _LENGTHS:
        lengths = ", ".join(f"{steps:,.0f}" for steps in grid.steps)
        raise DataError(
            f"there are trainings of {lengths} steps, but the method two-stage needs {_LENGTHS} lengths or more: train "
            "others, or choose the method paper or code"
        )
    mean = mean_of_known(grid.loss, 3)
    fitted = _fitted(mean, grid, settings)
    notes = [*grid.notes, *fitted.notes]
    unknown = np.isfinite(grid.loss) & ~np.isfinite(grid.error)
    draws: list[Floats] = []
    if settings.draws and len(grid.seeds) == 1 and unknown.any():
        notes.append("There is one seed, and standard errors are not known: predictions have no bands.")
    elif settings.draws:
        draws = [
            _fitted(drawn, grid, settings).loss for drawn in redrawn_losses(grid, mean, settings.draws, settings.seed)
        ]
        if len(grid.seeds) == 1:
            notes.append("There is one seed, so that bands leave out the spread between seeds.")
    surface = surface_of(grid, fitted, draws, settings, measured_steps=float(grid.steps[-1]), notes=notes)
    return surface if settings.dense_form is None else on_dense_grid(surface, settings.dense_form, settings.seed)


def _fitted(losses: Floats, grid: MeasuredGrid, settings: SurfaceSettings) -> FittedLosses:
    """Fit losses [M, R, S, T] at the ends of trainings, means over seeds."""
    logs, lowest = parabola_vertices(np.log(grid.learning_rates), np.moveaxis(losses, 1, -1))
    curves = fit_power_curves(grid.steps, lowest, np.ones(len(grid.steps)))
    steps = np.geomspace(grid.steps[0], grid.steps[-1], _STEPS)
    steps = np.append(steps, grid.steps[-1] * 2.0 ** np.arange(1, settings.doublings + 1))
    loss = np.moveaxis(power_curve(curves, steps), 1, 2)
    rates = np.moveaxis(_along(logs, np.log(grid.steps), np.log(steps)), 1, 2)
    noisy = grid.ratios > 0
    short = np.isnan(curves[..., 0])
    notes: tuple[str, ...] = ()
    if short.any():
        names = [f"{grid.models[m]} at {grid.ratios[s]:g}" for m, s in np.argwhere(short)]
        notes = (f"Fewer than {_LENGTHS} lengths are known of {', '.join(names)}: filled in where others are around.",)
        at = np.log(grid.ratios[noisy])
        loss[..., noisy] = between(loss[..., noisy], at, settings.interpolation)
        rates[..., noisy] = between(rates[..., noisy], at, "linear")
    loss[..., noisy] = isotonic(loss[..., noisy], increasing=True)
    return FittedLosses(steps, loss, np.exp(rates), curves, notes)


def _along(values: Floats, at: Floats, wanted: Floats) -> Floats:
    """Interpolate what is known along the last axis linearly, and repeat it at its ends."""
    found = np.full((*values.shape[:-1], len(wanted)), np.nan)
    for place in np.ndindex(values.shape[:-1]):
        known = np.isfinite(values[place])
        if known.any():
            found[place] = np.interp(wanted, at[known], values[place][known])
    return found


_POINTS = 4  # for each of the surface's


def on_dense_grid(surface: LossSurface, form: str, seed: int) -> LossSurface:
    """Fit a parametric law to a surface up to its longest training, and evaluate it on a denser grid.

    Losses without noise stay the surface's own, since the law is fitted to noisy ones. Draws keep their relative
    distance from the surface.

    Args:
      surface: complete, of several sizes and ratios.
      form: the law's name in the registry.
      seed: of the law's fit.

    Raises:
      ConfigurationError: the surface has too few values.
    """
    measured = surface.steps[surface.steps <= surface.measured_steps]
    known = _rows(surface, surface.parameters, measured, surface.noise_batch_ratios)
    known = known.where(np.isfinite(known.loss))
    law = fit_form(FORMS[form], known, seed=seed, draws=0)
    missed = np.sqrt(np.mean(np.log(law.predict_rows(known) / known.loss) ** 2))
    sizes, ratios = _denser(surface.parameters), _denser(surface.noise_batch_ratios)
    point = np.meshgrid(sizes, surface.steps, np.append(0.0, ratios), indexing="ij")
    loss = surface.predict(*point)
    rows = _rows(surface, sizes, surface.steps, ratios)
    loss[..., 1:] = law.predict_rows(rows).reshape(loss[..., 1:].shape)
    draws = loss * surface.predict_draws(*point) / surface.predict(*point)
    rates = surface.learning_rate(*point)
    return dataclasses.replace(
        surface,
        models=tuple(f"{size:,.0f} parameters" for size in sizes),
        parameters=sizes,
        noise_batch_ratios=ratios,
        loss=loss[..., 1:],
        noiseless=loss[..., 0],
        learning_rates=rates[..., 1:],
        noiseless_learning_rates=rates[..., 0],
        curves=fit_power_curves(surface.steps, np.moveaxis(loss, 1, 2), np.ones(len(surface.steps))),
        draws=draws[..., 1:],
        noiseless_draws=draws[..., 0],
        notes=(*surface.notes, f"The law {form} stands for what was measured, which it misses by {missed:.2%}."),
    )


def _denser(axis: Floats) -> Floats:
    """Put points between those of an axis, evenly in their logarithm."""
    places = np.arange(_POINTS * (len(axis) - 1) + 1) / _POINTS
    dense = np.exp(np.interp(places, np.arange(len(axis)), np.log(axis)))
    dense[::_POINTS] = axis
    return dense


def _rows(surface: LossSurface, sizes: Floats, steps: Floats, ratios: Floats) -> Measurements:
    """Lay out the ends of trainings of every size, length and ratio, with what a surface predicts of them."""
    size, step, ratio = (axis.ravel() for axis in np.meshgrid(sizes, steps, ratios, indexing="ij"))
    return make_measurements(
        model=size.astype(str).astype(object),
        parameters=np.round(size),
        non_embedding_parameters=np.round(size),
        learning_rate=1.0,
        noise_batch_ratio=ratio,
        batch_size=surface.batch_size,
        length=surface.length,
        steps=np.round(step),
        seed=0,
        step=np.round(step),
        loss=surface.predict(size, step, ratio),
        loss_error=np.nan,
        gradient_noise_scale=np.nan,
    )
