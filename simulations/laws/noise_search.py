"""The noise multiplier of one DP-SGD training with Poisson batches, in milliseconds: computed, not bounded.

The sum S of the steps' privacy losses has `delta(epsilon) = E[max(0, 1 - exp(epsilon - S))]`, and its distribution is a
power of a Fourier transform, as in `fl_core.privacy.loss_sums`: masses are multiplied by `exp(tilt loss)`, so that the
bulk is where epsilon is, and are put on a grid of which epsilon is a point. There a loss is spread over five points so
that its first four moments stay (Lagrange's interpolation), which allows grids that are coarse beside the loss of one
step. Nothing is rounded upwards, so that this is for searching; what a training promises is stated by
`fl_core.privacy.accounting`.
"""

import math
from typing import NamedTuple

import dp_accounting
import numpy as np
import scipy.fft
import scipy.optimize
import scipy.special

LEAST_NOISE, MOST_NOISE = 0.02, 1e6
_LEFT_OUT = 1e-4  # of delta, at the far end of a step's outcomes
_NEAR, _BEYOND = 9.0, 5.0  # standard deviations on the side of low losses, and on the other beyond what is left out
_STEP = 0.25  # between outcomes at most, in standard deviations of the noise
_FINENESS = 0.1  # of the grid, over the tilt
_LOG_OUTSIDE = 22.0  # minus the logarithm of the tilted mass outside the window
_MOST_OUTCOMES, _MOST_POINTS = 40_000, 1 << 16
_TILTS = np.geomspace(1e-4, 1e5, 109)
_CHANGES = np.geomspace(0.05, 20.0, 16)
_PRECISION = 1e-5


class Training(NamedTuple):
    """One training: the probability of an example in a step, its steps, and the epsilon and delta it is to have."""

    probability: float
    steps: int
    epsilon: float
    delta: float


def least_noise(training: Training, guess: float | None = None) -> float:
    """Find the least noise multiplier with which a training keeps its epsilon at delta, `LEAST_NOISE` at least."""
    if training.probability * training.steps <= training.delta:  # it is hardly ever in a step at all
        return LEAST_NOISE
    start = guess or limit_noise(training)
    low = high = min(max(start, 1.05 * LEAST_NOISE), MOST_NOISE)
    at = _excess(low, training)
    factor = 1.02
    below = above = at
    while above > 0 and high < MOST_NOISE:
        low, below, high = high, above, high * factor
        above, factor = _excess(high, training), factor**2
    while below <= 0 and low > LEAST_NOISE:
        high, above, low = low, below, max(low / factor, LEAST_NOISE)
        below, factor = _excess(low, training), factor**2
    if below <= 0:
        return LEAST_NOISE
    return float(scipy.optimize.brentq(_excess, low, high, (training,), rtol=_PRECISION, xtol=1e-12))


def limit_noise(training: Training) -> float:
    """Noise by the central limit theorem of privacy losses (Bu et al. 2020, "Deep learning with Gaussian differential
    privacy"), which many steps with much noise approach."""
    shift = 1 / gaussian_noise(training.epsilon, training.delta)
    return float(np.log1p((shift / training.probability) ** 2 / training.steps) ** -0.5)


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier of a single Gaussian mechanism."""
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def _excess(noise: float, training: Training) -> float:
    """How far delta is above what it may be, on a scale on which it is nearly linear in the noise."""
    return math.sqrt(-math.log(training.delta)) - math.sqrt(max(-log_delta(noise, training), 0.0))


def log_delta(noise: float, training: Training) -> float:
    """Compute the logarithm of delta at epsilon."""
    masses, loss = _one_step(noise, training, _STEP)
    tilt, part = _saddle_point(masses, loss, training)
    low, high = _window(masses, loss, training, tilt, _LOG_OUTSIDE - math.log(part))
    epsilon, steps = training.epsilon, training.steps
    wanted = min(_FINENESS / tilt, (high - low) / 512)
    spacing = epsilon / math.ceil(epsilon / max(wanted, (high - low) / _MOST_POINTS, epsilon / _MOST_POINTS))
    # Neighbouring outcomes should not be far apart on the grid.
    fine = max(min(_STEP, noise * spacing), (_NEAR + _BEYOND + 9 + 1 / noise) / _MOST_OUTCOMES)
    masses, loss = _one_step(noise, training, fine)
    grown = masses * np.exp(tilt * loss)
    points = scipy.fft.next_fast_len(math.ceil((high - low) / spacing) + 1, real=True)
    grid = _on_grid(grown / grown.sum(), loss / spacing, points)
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = scipy.fft.irfft(np.nan_to_num(np.exp(steps * np.log(scipy.fft.rfft(grid)))), points)
    first = math.floor(low / spacing)
    above = np.arange(max(round(epsilon / spacing) + 1, first), first + points)
    away = spacing * above - epsilon
    found = float(np.sum(np.maximum(sums[above % points], 0.0) * np.exp(-tilt * away) * -np.expm1(-away)))
    exponent = steps * (math.log(grown.sum())) - tilt * epsilon
    return min(exponent + math.log(max(found, 1e-250)), 0.0)


def _one_step(noise: float, training: Training, step: float) -> tuple[np.ndarray, np.ndarray]:
    """The masses of outcomes of a step's noise where the example may take part, and the privacy losses there, compared
    with where it does not; float64 [outcomes]. See `loss_pairs`: compared the other way about, delta is less."""
    q, shift = training.probability, 1 / noise
    tail = _LEFT_OUT * training.delta / training.steps
    high = _BEYOND - min(scipy.special.ndtri(tail), scipy.special.ndtri(min(tail / q, 0.5)) - shift)
    u = np.linspace(-_NEAR, high, math.ceil((high + _NEAR) / step) + 1)
    exponent = shift * (u - shift / 2)
    if q > 0.5:
        loss = np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + exponent)
    else:
        loss = np.where(exponent > 600, exponent + math.log(q), np.log1p(q * np.expm1(np.minimum(exponent, 600))))
    return np.exp(-np.square(u) / 2 + loss) * ((u[1] - u[0]) / math.sqrt(2 * math.pi)), loss


def _saddle_point(masses: np.ndarray, loss: np.ndarray, training: Training) -> tuple[float, float]:
    """About the tilt that moves to epsilon what the sum is where it is not 0, and that part of the tilted mass.

    Without the part that is 0, since where few steps decide, that is most, and of no consequence.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moments = training.steps * np.log1p(np.expm1(_TILTS[:, None] * loss) @ masses)
        part = np.maximum(-np.expm1(-moments), 1e-12)
        exponents = moments + np.log(part) - _TILTS * training.epsilon - np.log(_TILTS * (1 + _TILTS))
    best = int(np.nanargmin(np.where(np.isfinite(exponents), exponents, np.inf)))
    return float(_TILTS[best]), float(part[best])


def _window(
    masses: np.ndarray, loss: np.ndarray, training: Training, tilt: float, log_outside: float
) -> tuple[float, float]:
    """Between which the tilted sum lies, but for a mass that does not count, by Chernoff's inequality."""
    steps, epsilon = training.steps, training.epsilon
    grown = masses * np.exp(tilt * loss)
    grown /= grown.sum()
    mean = grown @ loss
    deviation = math.sqrt(steps * max(grown @ np.square(loss - mean), 1e-300))
    changes = _CHANGES / deviation
    ends = []
    for sign in (1, -1):
        with np.errstate(over="ignore"):
            moments = steps * np.log(np.exp(sign * changes[:, None] * loss) @ grown)
        ends.append(float(np.min((moments + log_outside) / changes)))
    high, low = ends[0], -ends[1]
    return min(low, 0.0 if low < 0 else low, epsilon), max(high, epsilon + 1e-9)


def _on_grid(masses: np.ndarray, places: np.ndarray, points: int) -> np.ndarray:
    """Spread masses at places over the whole numbers modulo `points`, keeping four moments."""
    nearest = np.rint(places)
    x = places - nearest
    grid = np.zeros(points)
    squared = np.square(x)
    weights = (
        x * (squared - 1) * (x - 2) / 24,
        -x * (x - 1) * (squared - 4) / 6,
        (squared - 1) * (squared - 4) / 4,
        -x * (x + 1) * (squared - 4) / 6,
        x * (squared - 1) * (x + 2) / 24,
    )
    numbers = nearest.astype(np.int64)
    for offset, weight in zip(range(-2, 3), weights, strict=True):
        grid += np.bincount((numbers + offset) % points, masses * weight, points)
    return grid
