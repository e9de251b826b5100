"""Measurements laid out as a grid: the loss by model, learning rate, ratio, seed and step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError, setting
from fedlm.simulations.laws.measurements import Measurements

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
    return _grid(rows.where(kept), rows.step[kept], batch_size, length, notes)


def final_losses(measurements: Measurements, batch_size: int | None = None, last_share: float = 1 / 64) -> MeasuredGrid:
    """Lay out the loss at the end of each training by the length of its schedule; no loss on the way is used.

    Args:
      measurements: of one length in tokens.
      batch_size: which trainings; needed where there are several sizes.
      last_share: share of the steps, at least a block, over which the loss is averaged.

    Raises:
      DataError: there are none, or several batch sizes or lengths.
    """
    rows, batch_size, length, notes = _of_one_kind(measurements, batch_size)
    last = rows.step > rows.steps * (1 - last_share)
    last |= rows.step == rows.steps
    rows = rows.where(last)
    if not len(rows):
        raise DataError("no training has ended; finish some of them first")
    return _grid(rows, rows.steps, batch_size, length, notes)


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


def _grid(rows: Measurements, at: NDArray[np.int64], batch_size: int, length: int, notes: list[str]) -> MeasuredGrid:
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
        tuple(names[order].tolist()),
        sizes[order],
        values[0],
        values[1],
        values[2],
        values[3].astype(float),
        loss,
        error,
        batch_size,
        length,
        tuple(notes),
    )


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
