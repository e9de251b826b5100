"""Noise for many private trainings at once, as a scaling law asks for: ten thousand in seconds, and never too little.

For any tilt t, with K the logarithm of `E[exp(t S)]` and S the sum of the steps' privacy losses,

    delta(epsilon) = exp(K - t epsilon) E_t[g(S - epsilon)],    g(y) = exp(-t y) (1 - exp(-y)) for y > 0, else 0,

where E_t is over masses multiplied by `exp(t S)`. The expectation is at most the maximum of g, and at most what it
would be for a normal S of the same mean and variance and, by the inequality of Berry and Esseen with the constant of
Shevtsova (2011, arXiv 1111.6554), `2 * 0.469 rho / (sigma^3 sqrt(steps))` of that maximum more, rho being the third
absolute central moment of a step's loss. The lesser of the two bounds delta from above, in both directions (compare
Alghamdi et al. 2023, "The saddle-point method in differential privacy").
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.delta import LEAST_DELTA

_BERRY_ESSEEN = 0.469
_NODES = 161
_CHUNK = 256  # trainings at a time, so that their arrays stay in the processor's caches
_LEFT_OUT = 1e-3  # of delta, at the ends of a step's outcomes
_LEAST_NOISE, _MOST_NOISE = 0.25, 1e5
_BISECTIONS, _TILTS = 13, 14


class _Trainings(NamedTuple):
    """Float64 [trainings] each: probability of an example in a step, steps, epsilon and delta."""

    probability: np.ndarray
    steps: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray


def many_noise_multipliers(
    probability: npt.ArrayLike, steps: npt.ArrayLike, epsilon: npt.ArrayLike, delta: npt.ArrayLike
) -> np.ndarray:
    """Find noise multipliers of DP-SGD with Poisson sampling that keep (epsilon, delta), for arrays of trainings.

    Ten thousand take some ten seconds. The noise is never too little. It is more than what
    `fedlm.fl_core.privacy.accounting.calibrate` finds, one by one and to 0.1 %, by 6 % at the median of trainings drawn
    at random, and by up to 20 % where a few steps decide.

    Args:
      probability: with which an example is in a step, below 1.
      steps: of a training, 10 million at most.
      epsilon: positive.
      delta: at least 1e-15 and below 1.

    Returns:
      Float64, of the shape that the arguments have together. Nothing below 0.25 is tried.

    Raises:
      ConfigurationError: a number is out of range, or no noise up to 100,000 is enough.
    """
    arrays = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in (probability, steps, epsilon, delta)))
    flat = _Trainings(*(one.ravel() for one in arrays))
    for name, fits, wanted in (
        ("probability", (flat.probability > 0) & (flat.probability < 1), "lie between 0 and 1"),
        ("steps", (flat.steps >= 1) & (flat.steps <= 1e7), "lie between 1 and 10 million"),
        ("epsilon", (flat.epsilon > 0) & np.isfinite(flat.epsilon), "be positive and finite"),
        ("delta", (flat.delta >= LEAST_DELTA) & (flat.delta < 1), f"be at least {LEAST_DELTA:g} and below 1"),
    ):
        if not fits.all():
            raise ConfigurationError(f"{name} has {getattr(flat, name)[~fits][0]}, but must {wanted}")
    found = np.empty(len(flat.delta))
    for start in range(0, len(found), _CHUNK):
        part = slice(start, start + _CHUNK)
        found[part] = _least_noise(_Trainings(*(one[part] for one in flat)))
    return found.reshape(arrays[0].shape)


def _least_noise(trainings: _Trainings) -> np.ndarray:
    # Bisection on the logarithm; the upper end always keeps the promise.
    low, high = np.full((2, len(trainings.delta)), math.log(_LEAST_NOISE))
    enough = _enough(trainings, np.exp(high))
    while not enough.all():
        low, high = np.where(enough, low, high), np.where(enough, high, high + math.log(2))
        if high.max() > math.log(_MOST_NOISE):
            raise ConfigurationError(f"no noise multiplier up to {_MOST_NOISE:g} is enough; ask for a larger epsilon")
        enough |= _enough(trainings, np.exp(high))
    open_ = np.flatnonzero(low < high)
    if len(open_):
        part = _Trainings(*(one[open_] for one in trainings))
        below, above = low[open_], high[open_]
        for _ in range(_BISECTIONS):
            middle = (below + above) / 2
            fits = _enough(part, np.exp(middle))
            below, above = np.where(fits, below, middle), np.where(fits, middle, above)
        high[open_] = above
    return np.exp(high)


def _enough(trainings: _Trainings, noise: np.ndarray) -> np.ndarray:
    # Losses that hardly vary leave no number, which is never below delta.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bounds = [_delta(trainings, noise, direction) for direction in ("remove", "add")]
    return np.logical_and(*(bound <= trainings.delta for bound in bounds))


def _delta(trainings: _Trainings, noise: np.ndarray, direction: str) -> np.ndarray:
    """Bound delta at epsilon, float64 [trainings]."""
    q, steps, epsilon, delta = (one[:, None] for one in trainings)
    shift = 1 / noise[:, None]
    tail = _LEFT_OUT * delta / steps / 4
    low = scipy.special.ndtri(tail)
    end = np.maximum(-low, shift - scipy.special.ndtri(np.minimum(tail / q, 0.5)))
    begin, end = (low, end) if direction == "remove" else (low, -low)
    width = (end - begin) / (_NODES - 1)
    u = begin + width * np.arange(_NODES)
    outcome = u if direction == "remove" else -u
    ratio = np.log1p(q * np.expm1(shift * (outcome - shift / 2)))
    loss = ratio if direction == "remove" else -ratio
    log_mass = np.log(width / math.sqrt(2 * math.pi)) - np.square(u) / 2 + (ratio if direction == "remove" else 0.0)
    log_moment, mean, variance, third, tilt = _tilted(log_mass, loss, steps, epsilon)
    deviation = np.sqrt(steps * variance)
    away = (epsilon - steps * mean) / deviation
    peak = np.exp(tilt * np.log(tilt) - (1 + tilt) * np.log1p(tilt))
    # Of a normal distribution: erfcx overflows where the mean is far above epsilon, and there the peak is less.
    root = math.sqrt(2)
    arguments = [(tilt * deviation + away) / root, ((1 + tilt) * deviation + away) / root]
    near = np.exp(-np.square(away) / 2) / 2
    normal = near * (
        scipy.special.erfcx(np.maximum(arguments[0], -20)) - scipy.special.erfcx(np.maximum(arguments[1], -20))
    )
    normal = np.where(arguments[0] > -20, normal, np.inf)
    error = 2 * _BERRY_ESSEEN * third / (variance**1.5 * np.sqrt(steps)) * peak
    expected = np.minimum(peak, normal * (1 + 1e-9) + error)
    exponent = steps * log_moment - tilt * epsilon
    return (np.exp(np.minimum(exponent, 50.0)) * expected * (1 + 1e-6) + _LEFT_OUT * delta)[:, 0]


def _tilted(
    log_mass: np.ndarray, loss: np.ndarray, steps: np.ndarray, epsilon: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A step's log moment, tilted mean, variance and third absolute moment, and the tilt that moves the mean of all
    steps to about epsilon; float64 [trainings, 1] each."""
    log_tilt = np.zeros_like(epsilon)
    low, high = np.full((2, *epsilon.shape), -7.0)
    high += 18.0
    for last in (*[False] * _TILTS, True):
        tilt = np.exp(log_tilt)
        exponents = log_mass + tilt * loss
        top = exponents.max(axis=1, keepdims=True)
        masses = np.exp(exponents - top)
        total = masses.sum(axis=1, keepdims=True)
        masses /= total
        mean = (masses * loss).sum(axis=1, keepdims=True)
        apart = loss - mean
        variance = (masses * np.square(apart)).sum(axis=1, keepdims=True)
        if last:
            break
        over = steps * mean - epsilon
        low, high = np.where(over < 0, log_tilt, low), np.where(over < 0, high, log_tilt)
        # The mean is about a power of the tilt where it is large, and about linear where it is not.
        newton = np.log(np.maximum(tilt - over / np.maximum(steps * variance, 1e-300), 1e-300))
        log_tilt = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
    third = (masses * np.abs(apart) ** 3).sum(axis=1, keepdims=True)
    return np.log(total) + top, mean, variance, third, tilt
