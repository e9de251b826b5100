"""Fitted losses of all ratios, put into a surface."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.measured_grid import MeasuredGrid
from fedlm.simulations.laws.surface import LossSurface
from fedlm.simulations.laws.surface_settings import SurfaceSettings

Floats = NDArray[np.float64]
_DECIMALS_OF_DRAWS = 6


@dataclass(frozen=True)
class FittedLosses:
    """Losses of models, steps and ratios, the first of which may be 0.

    Attributes:
      steps: float64 [T].
      loss: float64 [M, T, S].
      rates: float64 [M, T, S], the best learning rates.
      curves: float64 [M, S, 3], E, A and alpha.
      notes: sentences on what was missing.
    """

    steps: Floats
    loss: Floats
    rates: Floats
    curves: Floats
    notes: tuple[str, ...]


def surface_of(
    grid: MeasuredGrid,
    fitted: FittedLosses,
    draws: Sequence[Floats],
    measured_steps: float,
    settings: SurfaceSettings,
    notes: Sequence[str],
) -> LossSurface:
    """Put fitted losses, and draws of them [M, T, S], into a surface that has those without noise apart."""
    noisy = grid.ratios > 0
    unknown = np.full(fitted.loss.shape[:2], np.nan)
    drawn = np.round(np.array(draws).reshape(len(draws), *fitted.loss.shape), _DECIMALS_OF_DRAWS)
    return LossSurface(
        models=grid.models,
        parameters=grid.parameters,
        steps=fitted.steps,
        noise_batch_ratios=grid.ratios[noisy],
        loss=fitted.loss[..., noisy],
        noiseless=unknown if noisy.all() else fitted.loss[..., 0],
        learning_rates=fitted.rates[..., noisy],
        noiseless_learning_rates=unknown if noisy.all() else fitted.rates[..., 0],
        curves=np.pad(fitted.curves, [(0, 0), (int(noisy.all()), 0), (0, 0)], constant_values=np.nan),
        measured_steps=measured_steps,
        batch_size=grid.batch_size,
        length=grid.length,
        method=settings.method,
        interpolation=settings.interpolation,
        draws=drawn[..., noisy],
        noiseless_draws=np.full(drawn.shape[:3], np.nan) if noisy.all() else drawn[..., 0],
        notes=tuple(notes),
    )


def mean_of_known(losses: Floats, axis: int) -> Floats:
    """Average over an axis what is known; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(losses, axis=axis))
