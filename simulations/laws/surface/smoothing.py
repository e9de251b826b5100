"""Noisy losses smoothed, and curves through few of them."""

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

from fedlm.simulations.laws.surface.loss_surface import Interpolation

Floats = NDArray[np.float64]


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


_EXPONENTS = np.geomspace(0.02, 4.0, 60)
_GOLDEN = (np.sqrt(5) - 1) / 2
_GOLDEN_STEPS = 36


def fit_power_curves(steps: Floats, losses: Floats, weights: Floats, asymptotes: Floats | None = None) -> Floats:
    """Fit loss = E + A / steps^alpha by least squares, with E and A at least 0, to many curves at once.

    For a given alpha the best E and A have a closed form, so that only alpha is searched: on a grid, then by golden
    section. The optimum is that of `scipy.optimize.curve_fit`, but found from every start and for thousands of curves.

    Source: McKenna et al. 2025, section 3.3; Golub and Pereyra 1973 for the separation of linear coefficients.

    Args:
      steps: [T], positive.
      losses: [..., T]; NaN are not counted.
      weights: [T], of the squares.
      asymptotes: [...], E where it is known; None to fit it.

    Returns:
      float64 [..., 3]: E, A and alpha; NaN for curves of fewer losses than coefficients.
    """
    rows = losses.reshape(-1, len(steps))
    known = np.isfinite(rows)
    weight, loss = known * weights, np.where(known, rows, 0.0)
    end = steps[-1]
    fixed = None if asymptotes is None else asymptotes.reshape(-1)
    errors = [
        _solved(np.broadcast_to(alpha, len(rows)), steps / end, loss, weight, fixed=fixed)[2] for alpha in _EXPONENTS
    ]
    best = np.argmin(errors, axis=0)
    low = np.log(_EXPONENTS[np.maximum(best - 1, 0)])
    high = np.log(_EXPONENTS[np.minimum(best + 1, len(_EXPONENTS) - 1)])
    for _ in range(_GOLDEN_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        at_left, at_right = (_solved(np.exp(log), steps / end, loss, weight, fixed=fixed)[2] for log in (left, right))
        low, high = np.where(at_left < at_right, low, left), np.where(at_left < at_right, right, high)
    alpha = np.exp((low + high) / 2)
    limit, scale, _ = _solved(alpha, steps / end, loss, weight, fixed=fixed)
    found = np.stack([limit, scale * end**alpha, alpha], axis=-1)
    found[known.sum(axis=1) < (3 if fixed is None else 2)] = np.nan
    return found.reshape(*losses.shape[:-1], 3)


def _solved(
    alpha: Floats, steps: Floats, loss: Floats, weight: Floats, *, fixed: Floats | None
) -> tuple[Floats, Floats, Floats]:
    """Return the best E and A of each curve for its alpha, and the sum of weighted squares that they leave."""
    power = np.exp(-alpha[:, None] * np.log(steps))
    total = np.maximum(weight.sum(axis=1), 1e-300)
    mean_power, mean_loss = (np.einsum("ct,ct->c", weight, values) / total for values in (power, loss))
    from_origin = np.einsum("ct,ct,ct->c", weight, power, power)
    if fixed is None:
        centred = power - mean_power[:, None]
        spread = np.maximum(np.einsum("ct,ct,ct->c", weight, centred, centred), 1e-300)
        scale = np.maximum(np.einsum("ct,ct,ct->c", weight, centred, loss) / spread, 0.0)
        limit = mean_loss - scale * mean_power
        through_origin = np.einsum("ct,ct,ct->c", weight, power, loss) / np.maximum(from_origin, 1e-300)
        limit, scale = np.where(limit < 0, 0.0, limit), np.where(limit < 0, through_origin, scale)
    else:
        limit = fixed
        above = np.einsum("ct,ct,ct->c", weight, power, loss - limit[:, None])
        scale = np.maximum(above / np.maximum(from_origin, 1e-300), 0.0)
    left = loss - limit[:, None] - scale[:, None] * power
    return limit, scale, np.einsum("ct,ct,ct->c", weight, left, left)


def power_curve(coefficients: Floats, steps: Floats) -> Floats:
    """Return E + A / steps^alpha: float64 [..., T] of coefficients [..., 3]."""
    limit, scale, alpha = (coefficients[..., number, None] for number in range(3))
    return np.asarray(limit + scale * steps**-alpha)


def parabola_vertices(logs: Floats, losses: Floats) -> tuple[Floats, Floats]:
    """Find the lowest points of parabolas in the logarithm of the learning rate.

    Where there are fewer than three losses, no minimum or one outside the rates, it is the least measured loss.

    Source: the VaultGemma report (2025), section 6.

    Args:
      logs: [R], ascending.
      losses: [..., R]; NaN are not counted.

    Returns:
      The logarithms at the vertices and the losses there, float64 [...]; NaN where no loss is known.
    """
    rows = losses.reshape(-1, len(logs))
    known = np.isfinite(rows)
    loss = np.where(known, rows, 0.0)
    enough = known.sum(axis=1) >= 3
    powers = (logs - logs.mean())[:, None] ** np.arange(3)
    squares = np.einsum("cr,ri,rj->cij", known, powers, powers)
    squares[~enough] = np.eye(3)
    constant, slope, curvature = np.linalg.solve(squares, np.einsum("cr,ri->ci", loss, powers)[..., None])[..., 0].T
    with np.errstate(divide="ignore", invalid="ignore"):
        at = -slope / (2 * curvature) + logs.mean()
        lowest = constant - slope**2 / (4 * curvature)
    least, most = (
        bound(np.where(known, logs, other), axis=1) for bound, other in ((np.min, np.inf), (np.max, -np.inf))
    )
    found = enough & (curvature > 0) & (at >= least) & (at <= most)
    measured = np.argmin(np.where(known, rows, np.inf), axis=1)
    best = np.where(known.any(axis=1), rows[np.arange(len(rows)), measured], np.nan)
    at = np.where(found, at, np.where(np.isnan(best), np.nan, logs[measured]))
    return at.reshape(losses.shape[:-1]), np.where(found, lowest, best).reshape(losses.shape[:-1])
