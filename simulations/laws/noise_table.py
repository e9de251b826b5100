"""Noise multipliers of very many DP-SGD trainings at one epsilon and delta: a table, interpolated in logarithms."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import RectBivariateSpline

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.delta import check_delta
from fedlm.simulations.laws.noise_search import Training, gaussian_noise, least_noise, limit_noise

Batches = Literal["poisson", "lower"]
"""How batches are drawn: as fedlm trains, or whichever of Poisson batches and ones in a fixed order needs less noise,
as in McKenna et al. 2025, section B.1."""

TABLE_ERROR = 2e-2
"""Relative error of the table where an example is drawn once or more on average, which tests hold it to. It is mostly
below 3e-3, and 1e-3 from epsilon 4 on; it is larger where epsilon is below 1 and an example is drawn a few times."""
LEAST_EPSILON = 0.1
_APART = math.log(1.8)  # between points of the table
_FEWEST = 4  # along each side


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Noise multipliers for one epsilon and delta.

    Poisson batches: each example is in a step with probability q; epsilon is the same for neighbours by addition or
    removal of an example and for zero-out. Where q times the steps is below 1, the table gives the noise for 1, which
    is more than what is needed. Batches in a fixed order: an example takes part in as many steps as there are passes,
    rounded up, under zero-out; nothing is amplified by sampling.

    Attributes:
      epsilon: that trainings keep.
      delta: at which.
      batches: how they are drawn.
    """

    epsilon: float
    delta: float
    batches: Batches
    _correction: RectBivariateSpline
    _low: tuple[float, float]
    _high: tuple[float, float]

    def noise_multiplier(self, examples: ArrayLike, batch_size: ArrayLike, steps: ArrayLike) -> NDArray[np.float64]:
        """Look up noise multipliers; see `TABLE_ERROR`.

        Args:
          examples: N, how many there are to draw from.
          batch_size: B, examples of a step on average.
          steps: T.

        Returns:
          float64 of the shape that these have together; NaN for batches of more examples than there are.

        Raises:
          ValueError: steps or passes are beyond those that the table was made for.
        """
        examples, batch_size, steps = np.broadcast_arrays(
            *(np.asarray(one, np.float64) for one in (examples, batch_size, steps))
        )
        probability = np.minimum(np.maximum(batch_size / examples, 1 / steps), 1.0)
        at = np.log(steps), np.log(probability * steps)
        for values, low, high in zip(at, self._low, self._high, strict=True):
            if values.size and (values.min() < low - 1e-9 or values.max() > high + 1e-9):
                raise ValueError(
                    f"asked for {math.exp(values.min()):g} to {math.exp(values.max()):g} of a table from "
                    f"{math.exp(low):g} to {math.exp(high):g}"
                )
        noise = _limit(probability, steps, self.epsilon, self.delta) * np.exp(self._correction.ev(*at))
        if self.batches == "lower":
            passes = np.ceil(batch_size * steps / examples * (1 - 1e-12))
            noise = np.minimum(noise, np.sqrt(passes) * gaussian_noise(self.epsilon, self.delta))
        return np.where(batch_size > examples, np.nan, noise)


def make_noise_table(
    epsilon: float, delta: float, steps: tuple[float, float], passes: tuple[float, float], batches: Batches = "poisson"
) -> NoiseTable:
    """Make a table, which takes a second or two.

    Args:
      epsilon: that trainings keep.
      delta: at which.
      steps: the least and the most.
      passes: the least and the most times that an example is drawn on average, q times the steps.
      batches: how they are drawn.

    Raises:
      ConfigurationError: epsilon or delta is out of range.
    """
    check_delta(delta)
    if not LEAST_EPSILON <= epsilon < math.inf:
        raise ConfigurationError(f"epsilon is {epsilon:g}, but must be at least {LEAST_EPSILON:g} to be planned for")
    times = _axis(*steps)
    often = _axis(max(passes[0], 1.0), max(passes[1], 1.0))
    values = np.empty((len(times), len(often)))
    for row, time in enumerate(np.round(np.exp(times))):
        guess = None
        for column, number in enumerate(np.exp(often)):
            training = Training(min(number / time, 1.0), int(time), epsilon, delta)
            limit = limit_noise(training)
            if number >= time:  # every example is in every step
                noise = math.sqrt(time) * gaussian_noise(epsilon, delta)
            else:
                noise = least_noise(training, limit * guess if guess else None)
            guess = noise / limit
            values[row, column] = math.log(guess)
    low, high = (float(times[0]), float(often[0])), (float(times[-1]), float(often[-1]))
    return NoiseTable(epsilon, delta, batches, RectBivariateSpline(times, often, values), low, high)


def _axis(low: float, high: float) -> NDArray[np.float64]:
    """Logarithms that are about `_APART` apart, from just below to just above."""
    begin, end = math.log(low), max(math.log(high), math.log(low) + 1.0)
    return np.linspace(begin, end, max(_FEWEST, math.ceil((end - begin) / _APART) + 1))


def _limit(
    probability: NDArray[np.float64], steps: NDArray[np.float64], epsilon: float, delta: float
) -> NDArray[np.float64]:
    shift = 1 / gaussian_noise(epsilon, delta)
    return np.asarray(np.log1p(np.square(shift / probability) / steps) ** -0.5)
