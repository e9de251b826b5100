"""How a surface is fitted, and fitted losses of all ratios put into one."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, CountOrZero, NotNegative, Range, Seed
from fedlm.simulations.laws.surface.loss_surface import Interpolation, LossSurface, Method
from fedlm.simulations.laws.surface.measured_grid import MeasuredGrid


@dataclass(frozen=True)
class SurfaceSettings:
    """How losses are smoothed, extrapolated and drawn anew.

    Thresholds are shares of the longest training where they are below 1, else steps. The defaults are the published
    ones as shares, so that trainings of any length are treated alike; the interpolation alone is another one.
    """

    method: Method = "paper"
    """paper: as McKenna et al. 2025 describe it. code: as in their public code. two-stage: as in the VaultGemma report,
    from the final losses of trainings of several lengths."""
    interpolation: Interpolation = "monotone-cubic"
    """How to interpolate between the grid's sizes and ratios, in the logarithms. monotone-cubic: by cubics that rise
    and fall with the points. linear: as published, for the paper's table and figures, with larger errors where points
    are far apart."""
    rolling: Annotated[NotNegative, OnlyWith("method", "paper")] = 10 / 1280
    """With the method paper: each loss is averaged with those of this many blocks before it, or of this share of
    all."""
    drop_before: Annotated[NotNegative, OnlyWith("method", "code")] = 1000 / 128_000
    """With the method code: drop losses of earlier steps, those of the warm-up."""
    extrapolate_from: Annotated[NotNegative, OnlyWith("method", "paper", "code")] = 16_000 / 128_000
    """The loss beyond the longest training follows from losses from here on."""
    doublings: Annotated[int, Range(least=0, most=64)] = 6
    """How often extrapolation doubles the longest training, at most."""
    kept_steps: Annotated[Annotated[int, Range(least=8, most=1 << 20)], OnlyWith("method", "paper", "code")] = 96
    """Keep this many of the measured steps, evenly spaced in their logarithm, or all if there are fewer."""
    draws: CountOrZero = 100
    """Number of fits to losses drawn anew, which give predictions their bands; 0 for none."""
    seed: Seed = 0
    """Seed of these draws."""
    batch_size: Count | None = None
    """Batch size of the trainings to fit; needed if the measurements have several batch sizes."""

    def __post_init__(self) -> None:
        check_value_types(self)


def amount(setting: float, whole: float) -> float:
    """Return a setting that is a share of the whole where it is below 1, else an amount."""
    return setting * whole if setting < 1 else setting


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
    settings: SurfaceSettings,
    *,
    measured_steps: float,
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
