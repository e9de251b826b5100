"""Noise multipliers of very many DP-SGD trainings at one epsilon and delta: a table, interpolated in logarithms."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import RectBivariateSpline
from threadpoolctl import threadpool_limits

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier
from fedlm.fl_core.privacy.accounting.noise_search import Training, least_noise
from fedlm.fl_core.privacy.promise.guarantee import MOST_LOSS

TABLE_ERROR = 1e-3
"""Relative error of the table at most, for trainings of 100 steps or more; of fewer steps, 2e-2. Half of the errors are
below 1e-5. Where an example is drawn less often than `_LEAST_PASSES` on average, it is more noise than is needed."""
LEAST_EPSILON = 0.1
_STEPS_APART = math.log(3.0)  # between points of the table
_EXCESS_APART = ((-math.inf, 1.4), (-3.0, 0.3), (6.0, 0.7))  # from where on, and how far
_LEAST_PASSES, _OF_DELTA = 0.01, 100.0  # or so many times delta: close to delta, the noise falls to nothing
_MARGIN = 4.0  # passes beyond those that are looked up, as a factor
_FEWEST = 4  # along each side


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Noise multipliers for one epsilon and delta.

    Each example is in a step with probability q. Epsilon is the same for neighbours by addition or removal of an
    example and for zero-out.

    Attributes:
      epsilon: that trainings keep.
      delta: at which.
    """

    epsilon: float
    delta: float
    _correction: RectBivariateSpline
    _steps: tuple[float, float]
    _most_passes: float

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
        probability = np.minimum(np.maximum(batch_size / examples, _least_passes(self.delta) / steps), 1.0)
        _refuse_outside("steps", steps, *self._steps)
        _refuse_outside("passes", probability * steps, 0.0, self._most_passes)
        excess = _excess(probability * steps, steps, self.epsilon, self.delta)
        noise = _limit(excess) * np.exp(self._correction.ev(np.log(steps), excess))
        return np.where(batch_size > examples, np.nan, noise)


def make_noise_table(epsilon: float, delta: float, steps: tuple[float, float], most_passes: float) -> NoiseTable:
    """Make a table, which takes a second or two.

    Its axes are the steps and what the limit of many steps depends on (see `_excess`): the noise leaves that limit at
    about the same place whatever the steps, and there points are closer.

    Args:
      epsilon: that trainings keep.
      delta: at which.
      steps: the least and the most.
      most_passes: how often an example is drawn at most, on average: q times the steps.

    Raises:
      ConfigurationError: epsilon or delta is out of range.
    """
    check_delta(delta)
    if not LEAST_EPSILON <= epsilon <= MOST_LOSS:
        raise ConfigurationError(
            f"{setting('epsilon')} is {epsilon:g}, but must be from {LEAST_EPSILON:g} to {MOST_LOSS:g} to be planned "
            "for"
        )
    most_passes = max(most_passes, 1.0)
    low, high = math.log(steps[0]), max(math.log(steps[1]), math.log(steps[0]) + 1.0)
    times = np.linspace(low, high, max(_FEWEST, math.ceil((high - low) / _STEPS_APART) + 1))
    ends = (
        _excess(np.array(passes), np.exp(at), epsilon, delta)
        for passes, at in ((most_passes, low), (_least_passes(delta), high))
    )
    excesses = _axis(*(float(end) for end in ends))
    with threadpool_limits(1, "blas"):  # products so small that threads only wait for each other
        values = np.array(
            [_row(excesses, math.exp(time), epsilon=epsilon, delta=delta, most_passes=most_passes) for time in times]
        )
    spline = RectBivariateSpline(times, excesses, values)
    return NoiseTable(epsilon, delta, spline, (math.exp(low), math.exp(high)), most_passes)


def _row(
    excesses: NDArray[np.float64], time: float, *, epsilon: float, delta: float, most_passes: float
) -> NDArray[np.float64]:
    """Logarithms of the noise over its limit, at some steps; constant beyond the passes that are of interest."""
    steps = max(1, round(time))
    shift = 1 / gaussian_noise_multiplier(epsilon, delta)
    most = min(most_passes * _MARGIN, float(steps))
    wanted = np.clip(shift * math.sqrt(steps) * np.exp(-excesses / 2), min(_least_passes(delta) / _MARGIN, most), most)
    found: dict[float, float] = {}
    last = 0.0
    for passes in wanted.tolist():
        if passes not in found:
            limit = float(_limit(_excess(np.array(passes), np.array(steps), epsilon, delta)))
            noise = math.sqrt(steps) / shift
            if passes < steps:  # else every example is in every step
                training = Training(passes / steps, steps, epsilon, delta)
                noise = least_noise(training, limit * math.exp(last))
            last = found[passes] = math.log(noise / limit)
    return np.array([found[passes] for passes in wanted.tolist()])


def _least_passes(delta: float) -> float:
    return min(max(_LEAST_PASSES, _OF_DELTA * delta), 1.0)


def _axis(low: float, high: float) -> NDArray[np.float64]:
    """Points from just below to just above, which are about `_EXCESS_APART` apart."""
    points = [low]
    while points[-1] < high or len(points) < _FEWEST:
        points.append(points[-1] + next(apart for begin, apart in reversed(_EXCESS_APART) if points[-1] >= begin))
    return np.array(points)


def _excess(
    passes: NDArray[np.float64], steps: NDArray[np.float64] | float, epsilon: float, delta: float
) -> NDArray[np.float64]:
    """The logarithm of `exp(1 / noise^2) - 1` by the central limit theorem of privacy losses; see `limit_noise`."""
    return np.asarray(np.log(steps) - 2 * np.log(passes * gaussian_noise_multiplier(epsilon, delta)))


def _limit(excess: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.logaddexp(0.0, excess) ** -0.5)


def _refuse_outside(name: str, values: NDArray[np.float64], low: float, high: float) -> None:
    if values.size and (values.min() < low * (1 - 1e-9) or values.max() > high * (1 + 1e-9)):
        raise ValueError(f"{name} are {values.min():g} to {values.max():g}, of a table from {low:g} to {high:g}")
