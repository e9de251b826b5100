"""Noise correlated by a banded inverse square root (BISR; Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to square
roots: an optimal bound on the matrix factorization error for multi-epoch differentially private SGD").

The inverse of the strategy has a few bands: the first coefficients of the power series of `sqrt(1 - x)`. So a round's
noise is a weighted sum of its own draw and the last ones, which are drawn again from the secret: nothing is kept.
"""

import functools
import math

import numpy as np

from fedlm.fl_core.privacy.mechanisms.gaussian import GaussianNoise, GaussianState
from fedlm.fl_core.privacy.mechanisms.interface import NoisePlan, NoSettings, check_horizon
from fedlm.fl_core.privacy.mechanisms.toeplitz import ToeplitzMechanism, inverted
from fedlm.fl_core.privacy.noise.noise_source import Draw
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, Participation
from fedlm.models.base import Params

_MOST_BANDS = 32
"""That are tried, since each is a draw in every round."""


class BisrNoise(GaussianNoise):
    """A weighted sum of the draws of the last rounds."""

    def __init__(self, coefficients: tuple[float, ...], first: int, end: int):
        super().__init__(first, end)
        self._coefficients = coefficients

    def next(self, state: GaussianState, draw: Draw) -> tuple[Params, GaussianState]:
        number = check_horizon(state.round, self._end)
        weights = self._coefficients[: number - self._first + 1]
        terms = [(weight, (self._first, number - lag)) for lag, weight in enumerate(weights)]
        return draw(terms), GaussianState(np.asarray(number + 1))


class Bisr(ToeplitzMechanism):
    """The strategy whose inverse is a square root of prefix sums, cut off after some bands."""

    name = "bisr"
    label = "BISR"
    summary = "correlated noise by a banded inverse square root, which keeps nothing"
    help = "correlated noise by matrix factorization, from the last rounds' draws"

    def coefficients(self, options: NoSettings, rounds: int, participation: Participation) -> tuple[float, ...]:
        return _least_error(rounds, participation.bounded(rounds))

    def column(self, coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
        return inverted(coefficients, rounds)

    def inverse_column(self, coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
        return np.pad(coefficients, (0, max(0, rounds - len(coefficients))))[:rounds]

    def noise(self, plan: NoisePlan, first: int, end: int) -> BisrNoise:
        return BisrNoise(plan.coefficients, first, end)


def inverse_square_root(bands: int) -> tuple[float, ...]:
    """Give the first coefficients of the power series of `sqrt(1 - x)`: 1, -1/2, -1/8, -1/16, -5/128, ..."""
    coefficients = [1.0]
    for power in range(1, bands):
        coefficients.append(coefficients[-1] * (power - 1.5) / power)
    return tuple(coefficients)


@functools.lru_cache(maxsize=64)
def _least_error(rounds: int, bound: BoundedParticipation) -> tuple[float, ...]:
    """Choose among powers of two of bands that with the least mean squared error of prefix sums."""

    def error(coefficients: tuple[float, ...]) -> float:
        plan = NoisePlan(MECHANISM.name, rounds, 1.0, bound, coefficients=coefficients)
        squared = MECHANISM.stretch_squared(plan, rounds, bound.most(rounds), bound.min_separation)
        return squared * float(MECHANISM.prefix_variance(plan).mean())

    counts = [2**power for power in range(int(math.log2(min(rounds, _MOST_BANDS))) + 1)]
    return min(map(inverse_square_root, counts), key=error)


MECHANISM = Bisr()
