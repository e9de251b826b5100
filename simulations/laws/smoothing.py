"""Smoothing of noisy losses that are known to fall with steps and to rise with noise."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

from fedlm.simulations.laws.surface import Interpolation

Floats = NDArray[np.float64]
Smoothing = Literal["isotonic", "cumulative-minimum", "none"]


def isotonic(values: Floats, increasing: bool) -> Floats:
    """Find the closest values in least squares that never fall, or never rise, along the last axis; NaN stay."""
    rows = values.reshape(int(np.prod(values.shape[:-1])), values.shape[-1])
    found = rows.copy()
    measured = np.isfinite(rows)
    for row, known in zip(found, measured, strict=True):
        if known.all():
            row[:] = isotonic_regression(row, increasing=increasing).x
        elif known.any():
            row[known] = isotonic_regression(row[known], increasing=increasing).x
    return found.reshape(values.shape)


def without_flats(values: Floats) -> Floats:
    """Join the middles of runs of equal values along the last axis by straight lines; NaN stay.

    The steps of an isotonic regression are its own, not the data's: what is drawn around them is smoothed too well.
    """
    rows = values.reshape(-1, values.shape[-1]).copy()
    for row in rows:
        known = np.flatnonzero(np.isfinite(row))
        starts = np.flatnonzero(np.diff(row[known], prepend=np.nan) != 0)
        if len(starts) > 1:
            ends = np.append(starts[1:], len(known)) - 1
            row[known] = np.interp(known, (known[starts] + known[ends]) / 2, row[known][starts])
    return rows.reshape(values.shape)


def cumulative_minimum(values: Floats) -> Floats:
    """Return the least of each value and those before it along the last axis, which is too low where they are noisy."""
    return np.where(np.isnan(values), np.nan, np.fmin.accumulate(values, axis=-1))


def rolling_mean(values: Floats, window: int) -> Floats:
    """Average each value with up to `window` - 1 before it along the last axis; NaN stay, and are not counted."""
    known = np.isfinite(values)
    totals = np.cumsum(np.where(known, values, 0.0), axis=-1)
    counts = np.cumsum(known, axis=-1)
    totals[..., window:] -= totals[..., :-window].copy()
    counts[..., window:] -= counts[..., :-window].copy()
    return np.where(known, totals / np.maximum(counts, 1), np.nan)


def between(values: Floats, at: Floats, interpolation: Interpolation) -> Floats:
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


FALLING: dict[Smoothing, Callable[[Floats], Floats]] = {
    "isotonic": lambda values: isotonic(values, increasing=False),
    "cumulative-minimum": cumulative_minimum,
    "none": lambda values: values,
}
