"""Fit a surface of losses in two stages, as the VaultGemma report has it: by separate trainings of several lengths."""

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError
from fedlm.simulations.laws.measuring.measurements import Measurements
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
    dense grid of steps.

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
    return surface_of(grid, fitted, draws, settings, measured_steps=float(grid.steps[-1]), notes=notes)


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
