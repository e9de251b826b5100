"""Losses drawn anew: what the same trainings might have measured with other seeds and other examples."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.laws.measured_grid import MeasuredGrid

Floats = NDArray[np.float64]

_NORMAL_BY_MEDIAN = 1.4826  # the standard deviation of a normal variable by its median absolute deviation


def redrawn_losses(grid: MeasuredGrid, smooth: Floats, draws: int, seed: int) -> Iterator[Floats]:
    """Draw the mean over seeds of a grid's losses again and again.

    Where cells were trained with several seeds, each training's whole curve of relative deviations from the mean of its
    cell, scaled by sqrt(K / (K - 1)) for K seeds, is a draw's material: every cell takes as many curves as it has
    seeds, each with a random sign, from cells of the same ratio and the ratios beside it at their best learning rate,
    averages them and adds them to the smooth loss. Else the losses of blocks are drawn from normal distributions of
    their standard errors, which says nothing of the spread between seeds.

    Args:
      grid: what was measured.
      smooth: [M, R, S, T], its mean over seeds without noise, around which is drawn.
      draws: how many.
      seed: root of the random numbers.

    Yields:
      float64 [M, R, S, T], NaN where nothing was measured.
    """
    random = np.random.default_rng(seed)
    seeds = np.isfinite(grid.loss).any(axis=-1).sum(axis=-1)
    if seeds.max() < 2:
        error = _block_errors(grid)
        for _ in range(draws):
            yield smooth + error * random.standard_normal(smooth.shape)
        return
    pools = _deviations(grid, smooth, seeds)
    for _ in range(draws):
        drawn = np.empty_like(smooth)
        for ratio, pool in enumerate(pools):
            count = seeds[:, :, ratio]
            chosen = random.integers(len(pool), size=(*count.shape, seeds.max()))
            signs = random.choice([-1.0, 1.0], size=chosen.shape) * (np.arange(seeds.max()) < count[..., None])
            deviation = np.einsum("mrk,mrkt->mrt", signs, pool[chosen]) / np.maximum(count, 1)[..., None]
            drawn[:, :, ratio] = smooth[:, :, ratio] * (1 + deviation)
        yield drawn


def _block_errors(grid: MeasuredGrid) -> Floats:
    """Return the standard errors [M, R, S, T] of trainings of one seed each, by neighbours where they are not known."""
    loss, error = (np.max(np.where(np.isnan(part), -np.inf, part), axis=3) for part in (grid.loss, grid.error))
    loss, error = (np.where(np.isfinite(part), part, np.nan) for part in (loss, error))
    # A mean of two neighbours has half the variance of one, so that the difference has three halves of it.
    difference = loss[..., 1:-1] - (loss[..., 2:] + loss[..., :-2]) / 2
    known = np.isfinite(difference).any(axis=-1)
    spread = np.zeros(known.shape)
    if known.any():
        spread[known] = np.nanmedian(np.abs(difference[known]), axis=-1) * _NORMAL_BY_MEDIAN / np.sqrt(1.5)
    return np.where(np.isfinite(error), error, spread[..., None])


def _deviations(grid: MeasuredGrid, smooth: Floats, seeds: NDArray[np.int64]) -> list[Floats]:
    """Collect for each ratio the relative deviations [curves, T] of trainings from the mean of their cell."""
    at_end = np.where(seeds >= 2, _last(smooth), np.inf)
    best = np.argmin(at_end, axis=1)
    by_ratio: list[list[Floats]] = []
    for ratio in range(len(grid.ratios)):
        curves: list[Floats] = []
        for model, rate in enumerate(best[:, ratio]):
            if np.isfinite(at_end[model, rate, ratio]):
                cell = grid.loss[model, rate, ratio]
                cell = cell[np.isfinite(cell).any(axis=-1)]
                both = np.isfinite(cell).all(axis=0)
                mean = cell[:, both].mean(axis=0)
                deviation = np.zeros((len(cell), len(grid.steps)))
                deviation[:, both] = (cell[:, both] / mean - 1) * np.sqrt(len(cell) / (len(cell) - 1))
                curves.extend(deviation)
        by_ratio.append(curves)
    everything = [curve for curves in by_ratio for curve in curves]
    pools = (
        [curve for curves in by_ratio[max(ratio - 1, 0) : ratio + 2] for curve in curves] or everything
        for ratio in range(len(by_ratio))
    )
    return [np.array(pool) for pool in pools]


def _last(curves: Floats) -> Floats:
    """Return the last finite value along the last axis; infinity where there is none."""
    known = np.isfinite(curves)
    place = curves.shape[-1] - 1 - np.argmax(known[..., ::-1], axis=-1)
    last = np.take_along_axis(curves, place[..., None], axis=-1)[..., 0]
    return np.where(known.any(axis=-1), last, np.inf)
