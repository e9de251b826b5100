"""The noise multiplier of one DP-SGD training with Poisson batches, in milliseconds: computed, not bounded.

The sum S of the steps' privacy losses has `delta(epsilon) = E[max(0, 1 - exp(epsilon - S))]`, and its distribution is a
power of a Fourier transform, as in `loss_sums`: masses are multiplied by `exp(tilt loss)`, so that the
bulk is where epsilon is, and are put on a grid of which epsilon is a point. There a loss is spread over five points so
that its first four moments stay (Lagrange's interpolation), which allows grids that are coarse beside the loss of one
step. Nothing is rounded upwards, so that this is for searching; what a training promises is stated by
`fl_core.privacy.promise.guarantee`.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy

from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier

LEAST_NOISE, MOST_NOISE = 0.02, 1e6
_LEFT_OUT = 1e-4  # of delta, at the far end of a step's outcomes
_NEAR, _BEYOND = 9.0, 5.0  # standard deviations on the side of low losses, and on the other beyond what is left out
_STEP = 0.25  # between outcomes at most, in standard deviations of the noise
_FINENESS = 0.4  # of the grid, over the tilt
_APART = 40  # points of the grid between 0 and epsilon: small losses spread over five points must not reach there
_LOG_OUTSIDE = 22.0  # minus the logarithm of the tilted mass outside the window
_MARGIN = 3  # points of the grid beyond the window, over which a loss may be spread
_MOST_OUTCOMES, _MOST_POINTS = 40_000, 1 << 16
_TILTS = np.geomspace(1e-4, 1e5, 109)
_LEAST_CHANGE, _MOST_CHANGE, _CHANGES = 0.02, 20.0, 24  # of the tilt, over the largest loss, and over the deviation
_SHORTEST, _LONGEST, _MOST_TRIALS = 3e-4, 1.0, 60  # steps of the search, in the logarithm of the noise


class Training(NamedTuple):
    """One training: the probability of an example in a step, its steps, and the epsilon and delta it is to have."""

    probability: float
    steps: int
    epsilon: float
    delta: float


def least_noise(training: Training, guess: float | None = None) -> float:
    """Find the least noise multiplier with which a training keeps its epsilon at delta, `LEAST_NOISE` at least.

    Secants in the logarithm, within what is known to be too little and enough, to some parts in 100,000.
    """
    if training.probability * training.steps <= training.delta:  # it is hardly ever in a step at all
        return LEAST_NOISE
    low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    at = min(max(math.log(guess or limit_noise(training)), low + 0.05), high)
    slope = -math.sqrt(-math.log(training.delta))  # of the limit of many steps
    value = _excess(math.exp(at), training)
    for number in range(_MOST_TRIALS):
        low, high = (at, high) if value > 0 else (low, at)
        move = min(max(-value / slope, -_LONGEST), _LONGEST)
        if number and abs(move) < _SHORTEST:
            return math.exp(at + move)
        if not low < at + move < high:
            move = (low + high) / 2 - at
            if high - low < _SHORTEST:
                break
        found = _excess(math.exp(at + move), training)
        if (found - value) / move < 0:
            slope = (found - value) / move
        at, value = at + move, found
    return math.exp(high)


def limit_noise(training: Training) -> float:
    """Noise by the central limit theorem of privacy losses (Bu et al. 2020, "Deep learning with Gaussian differential
    privacy"), which many steps with much noise approach."""
    shift = 1 / gaussian_noise_multiplier(training.epsilon, training.delta)
    return float(np.log1p((shift / training.probability) ** 2 / training.steps) ** -0.5)


def _excess(noise: float, training: Training) -> float:
    """How far delta is above what it may be, on a scale on which it is nearly linear in the noise."""
    return math.sqrt(-math.log(training.delta)) - math.sqrt(max(-log_delta(noise, training), 0.0))


def log_delta(noise: float, training: Training) -> float:
    """Compute the logarithm of delta at epsilon.

    Losses count from that of a step in which the example certainly is not, so that a sum in which it never was is 0.
    """
    q, steps = training.probability, training.steps
    base = math.log1p(-q) if q <= 0.5 else 0.0
    epsilon = training.epsilon - steps * base
    masses, loss = _one_step(noise, training, _STEP, base)
    tilt, part = _saddle_point(masses, loss, steps, epsilon)
    low, high = _window(masses, loss, steps, tilt, log_outside=_LOG_OUTSIDE - math.log(part))
    low, high = min(low, epsilon), max(high, epsilon)
    wanted = min(_FINENESS / max(tilt, 1.0), (high - low) / 512, training.epsilon / _APART)
    spacing = max(wanted, (high - low) / _MOST_POINTS)
    # Neighbouring outcomes should not be far apart on the grid.
    fine = max(min(_STEP, noise * spacing), (_NEAR + _BEYOND + 9 + 1 / noise) / _MOST_OUTCOMES)
    masses, loss = _one_step(noise, training, fine, base)
    grown = masses * np.exp(tilt * loss)
    total = grown.sum()
    centre, kink = _centred(grown, loss, steps, epsilon, spacing=spacing)
    first = math.floor((low - steps * centre) / spacing) - _MARGIN
    last = math.ceil((high - steps * centre) / spacing) + _MARGIN
    points = scipy.fft.next_fast_len(last - first, real=True)
    grid = _on_grid(grown / total, (loss - centre) / spacing, points)
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = scipy.fft.irfft(np.nan_to_num(np.exp(steps * np.log(scipy.fft.rfft(grid)))), points)
    above = np.arange(max(kink + 1, first), first + points)
    away = spacing * (above - kink)
    found = float(np.sum(np.maximum(sums[above % points], 0.0) * np.exp(-tilt * away) * -np.expm1(-away)))
    # A sum for an integral from where the integrand begins to rise (Euler and Maclaurin).
    found += max(float(sums[kink % points]), 0.0) * spacing / 12
    exponent = steps * math.log(total) - tilt * epsilon
    return min(exponent + math.log(max(found, 1e-250)), 0.0)


def _centred(grown: np.ndarray, loss: np.ndarray, steps: int, epsilon: float, *, spacing: float) -> tuple[float, int]:
    """A step's loss that is to be a point of the grid, about the mean of the small ones, of which there are very many,
    such that epsilon is a point of the sums' grid; and which point that is."""
    small = np.where(loss < loss[0] + spacing, grown, 0.0)
    mean = float(small @ loss / small.sum())
    kink = round((epsilon - steps * mean) / spacing)
    return (epsilon - kink * spacing) / steps, kink


def _one_step(noise: float, training: Training, step: float, base: float) -> tuple[np.ndarray, np.ndarray]:
    """The masses of outcomes of a step's noise where the example may take part, and the privacy losses there, compared
    with where it does not, less `base`; float64 [outcomes]. See `loss_pairs`: compared the other way about, delta is
    less."""
    q, shift = training.probability, 1 / noise
    tail = _LEFT_OUT * training.delta / training.steps
    high = _BEYOND - min(scipy.special.ndtri(tail), scipy.special.ndtri(min(tail / q, 0.5)) - shift)
    u = np.linspace(-_NEAR, high, math.ceil((high + _NEAR) / step) + 1)
    exponent = shift * (u - shift / 2)
    if q > 0.5:
        loss = np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + exponent)
    else:
        loss = np.where(exponent > 600, exponent + math.log(q), np.log1p(q * np.expm1(np.minimum(exponent, 600))))
    return np.exp(-np.square(u) / 2 + loss) * ((u[1] - u[0]) / math.sqrt(2 * math.pi)), loss - base


def _saddle_point(masses: np.ndarray, loss: np.ndarray, steps: int, epsilon: float) -> tuple[float, float]:
    """About the tilt that moves to epsilon what the sum is where it is not 0, and that part of the tilted mass.

    Without the part that is 0, since where few steps decide, that is most, and of no consequence.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        moments = steps * np.log1p(np.expm1(_TILTS[:, None] * loss) @ masses)
        part = np.maximum(-np.expm1(-moments), 1e-12)
        exponents = moments + np.log(part) - _TILTS * epsilon - np.log(_TILTS * (1 + _TILTS))
    best = int(np.nanargmin(np.where(np.isfinite(exponents), exponents, np.inf)))
    return float(_TILTS[best]), float(part[best])


def _window(
    masses: np.ndarray, loss: np.ndarray, steps: int, tilt: float, *, log_outside: float
) -> tuple[float, float]:
    """Between which the tilted sum lies, but for a mass that does not count, by Chernoff's inequality."""
    grown = masses * np.exp(tilt * loss)
    grown /= grown.sum()
    deviation = math.sqrt(steps * max(grown @ np.square(loss - grown @ loss), 1e-300))
    changes = np.geomspace(_LEAST_CHANGE / max(loss.max(), deviation), _MOST_CHANGE / deviation, _CHANGES)
    ends = []
    for sign in (1, -1):
        with np.errstate(over="ignore"):
            moments = steps * np.log(np.exp(sign * changes[:, None] * loss) @ grown)
        ends.append(float(np.min((moments + log_outside) / changes)))
    return -ends[1], ends[0]


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
