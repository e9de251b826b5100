"""Noise multipliers of a few hundred trainings, each computed for itself rather than read off a table."""

import functools

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlm.fl_core.privacy.accounting.noise_search import Training, least_noise


def noise_multipliers(
    probability: ArrayLike, steps: ArrayLike, epsilon: ArrayLike, delta: ArrayLike
) -> NDArray[np.float64]:
    """Find the noise of DP-SGD with Poisson sampling for arrays of trainings, to a part in ten thousand.

    Args:
      probability: with which an example is in a step, below 1.
      steps: of a training.
      epsilon: that may be spent, for an example that is added or removed.
      delta: at which.

    Returns:
      float64 of the shape that the arguments have together, in clip norms.
    """
    shaped = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in (probability, steps, epsilon, delta)))
    rows = zip(*(one.ravel().tolist() for one in shaped), strict=True)
    return np.array([_noise_multiplier(*row) for row in rows]).reshape(shaped[0].shape)


@functools.lru_cache(maxsize=1 << 14)
def _noise_multiplier(probability: float, steps: float, epsilon: float, delta: float) -> float:
    return least_noise(Training(probability, round(steps), epsilon, delta))
