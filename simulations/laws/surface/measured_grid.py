"""Measurements laid out as a grid, by model, learning rate, ratio, seed and step, and their losses drawn anew."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError, setting
from fedlm.simulations.laws.measuring.measurements import Measurements

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredGrid:
    """Losses of trainings that differ in model, learning rate, noise-batch ratio and seed alone.

    Attributes:
      models: [M] names, from the smallest to the largest.
      parameters: float64 [M], all of each model's.
      learning_rates: float64 [R], ascending.
      ratios: float64 [S], noise-batch ratios, ascending; the first is 0 where there are trainings without noise.
      seeds: int64 [K].
      steps: float64 [T], at which blocks end, ascending.
      loss: float64 [M, R, S, K, T], mean over the block that ends there; NaN where not measured.
      error: float64 [M, R, S, K, T], its standard error; NaN where it is not known.
      batch_size: examples of a step.
      length: tokens that the models read of an example.
      notes: what was left out or is missing, a sentence each.
    """

    models: tuple[str, ...]
    parameters: Floats
    learning_rates: Floats
    ratios: Floats
    seeds: NDArray[np.int64]
    steps: Floats
    loss: Floats
    error: Floats
    batch_size: int
    length: int
    notes: tuple[str, ...]


def longest_runs(measurements: Measurements, batch_size: int | None = None) -> MeasuredGrid:
    """Lay out the blocks of each training's longest schedule; trainings that have not ended are left out.

    Args:
      measurements: of one length in tokens.
      batch_size: which trainings; needed where there are several sizes.

    Raises:
      DataError: there are none, or several batch sizes or lengths.
    """
    rows, batch_size, length, notes = _of_one_kind(measurements, batch_size)
    run, longest = _runs(rows)
    ended = np.zeros(len(longest), np.int64)
    np.maximum.at(ended, run, rows.step)
    np.maximum.at(longest, run, rows.steps)
    finished = (ended >= longest)[run]
    if left := int((ended < longest).sum()):
        notes.append(f"{left} of {len(longest)} trainings have not ended and are left out.")
    if not finished.any():
        raise DataError(f"none of {len(longest)} trainings has ended; finish some of them first")
    kept = finished & (rows.steps == longest[run])
    return _grid(rows.where(kept), rows.step[kept], batch_size=batch_size, length=length, notes=notes)


def final_losses(measurements: Measurements, batch_size: int | None = None) -> MeasuredGrid:
    """Lay out the loss at the end of each training by the length of its schedule; no loss on the way is used.

    It is averaged over the last 64th of the steps, at least a block.

    Args:
      measurements: of one length in tokens.
      batch_size: which trainings; needed where there are several sizes.

    Raises:
      DataError: there are none, or several batch sizes or lengths.
    """
    rows, batch_size, length, notes = _of_one_kind(measurements, batch_size)
    last = rows.step > rows.steps * (1 - 1 / 64)
    last |= rows.step == rows.steps
    rows = rows.where(last)
    if not len(rows):
        raise DataError("no training has ended; finish some of them first")
    return _grid(rows, rows.steps, batch_size=batch_size, length=length, notes=notes)


def _of_one_kind(measurements: Measurements, batch_size: int | None) -> tuple[Measurements, int, int, list[str]]:
    """Choose the trainings of one batch size, and refuse those that differ in what a grid has no axis for."""
    if not len(measurements):
        raise DataError("there are no measurements; run or import some first")
    sizes = np.unique(measurements.batch_size)
    if batch_size is None and len(sizes) > 1:
        raise DataError(
            f"there are trainings with batch sizes {_listed(sizes)}, and a fit is for one: choose it with "
            f"{setting('batch_size')}"
        )
    batch_size = int(sizes[0]) if batch_size is None else batch_size
    rows = of_batch_size(measurements, batch_size)
    lengths = np.unique(rows.length)
    if len(lengths) > 1:
        raise DataError(f"there are trainings on examples of {_listed(lengths)} tokens, and a fit is for one length")
    notes = []
    if left := len(measurements) - len(rows):
        notes.append(f"{left} blocks of other batch sizes than {batch_size} are left out.")
    most = rows.training_examples.max()
    if left := int((rows.training_examples < most).sum()):
        notes.append(f"{left} blocks of trainings on fewer examples than {most:,} are left out.")
        rows = rows.where(rows.training_examples == most)
    if again := len(rows) - _different_blocks(rows):
        notes.append(f"{again} of {len(rows)} blocks are of trainings that were measured already, and are averaged.")
    return rows, batch_size, int(lengths[0]), notes


def _different_blocks(rows: Measurements) -> int:
    return len(np.unique(np.stack([_runs(rows)[0], rows.steps, rows.step]), axis=1).T)


def of_batch_size(measurements: Measurements, batch_size: int) -> Measurements:
    """Keep the trainings of one batch size. Raises DataError where there is none."""
    rows = measurements.where(measurements.batch_size == batch_size)
    if not len(rows):
        sizes = _listed(np.unique(measurements.batch_size))
        raise DataError(f"there is no training with batch size {batch_size}; choose from {sizes}")
    return rows


def _listed(values: NDArray[np.int64]) -> str:
    return ", ".join(str(value) for value in values)


def _runs(rows: Measurements) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the trainings by all but their steps: int64 [rows], and a zero for each of them."""
    columns = (rows.model.astype(str), rows.learning_rate, rows.noise_batch_ratio, rows.seed)
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in columns], axis=1)
    runs, run = np.unique(codes, axis=0, return_inverse=True)
    return run.reshape(-1), np.zeros(len(runs), np.int64)


def _grid(rows: Measurements, at: NDArray[np.int64], *, batch_size: int, length: int, notes: list[str]) -> MeasuredGrid:
    """Put rows in their places of a grid; those of one place are averaged."""
    names, model = np.unique(rows.model.astype(str), return_inverse=True)
    sizes = np.zeros(len(names))
    sizes[model] = rows.parameters
    if (rows.parameters != sizes[model]).any() or len(set(sizes)) < len(names):
        raise DataError("models and numbers of parameters do not belong one to one; give each size a name of its own")
    order = np.argsort(sizes)
    place_of_model = np.argsort(order)
    axes = (rows.learning_rate, rows.noise_batch_ratio, rows.seed, at)
    values, places = zip(*(np.unique(axis, return_inverse=True) for axis in axes), strict=True)
    shape = (len(names), *(len(found) for found in values))
    place = np.ravel_multi_index((place_of_model[model], *places), shape)
    count = np.bincount(place, minlength=int(np.prod(shape)))
    total, squares = (np.bincount(place, row, minlength=len(count)) for row in (rows.loss, rows.loss_error**2))
    with np.errstate(invalid="ignore"):  # nothing of nothing is NaN, which says that it was not measured
        loss, error = (total / count).reshape(shape), (np.sqrt(squares) / count).reshape(shape)
    measured = np.isfinite(loss).any(axis=-1)
    missing = int(measured.size - measured.sum())
    if missing:
        cells = np.any(measured, axis=(1, 3))
        empty = [f"{names[order][m]} at {values[1][s]:g}" for m, s in np.argwhere(~cells)]
        without = f"; no training at all of {_some(empty)}" if empty else ""
        notes = [*notes, f"{missing} of {measured.size} trainings of the grid are missing{without}."]
    return MeasuredGrid(
        models=tuple(names[order].tolist()),
        parameters=sizes[order],
        learning_rates=values[0],
        ratios=values[1],
        seeds=values[2],
        steps=values[3].astype(float),
        loss=loss,
        error=error,
        batch_size=batch_size,
        length=length,
        notes=tuple(notes),
    )


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
