"""What mechanisms share whose strategy is a Toeplitz matrix, given by its first column."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.interface import NoisePlan, check_horizon
from fedlm.fl_core.privacy.mechanisms.strategy import StrategyMechanism
from fedlm.fl_core.privacy.noise.noise_source import Draw
from fedlm.models.base import Params

Buffers = tuple[Params, ...]
"""float64 arrays of the sums' structure."""


class ToeplitzState(NamedTuple):
    """Counter and buffers.

    Attributes:
      round: int64 scalar, the number of the next round.
      buffers: what the next rounds need of those before.
    """

    round: np.ndarray
    buffers: Buffers


class ToeplitzNoise:
    """Draws multiplied by the inverse of the strategy, which takes some buffers."""

    def __init__(self, buffers: int, first: int, end: int):
        self._buffers, self._first, self._end = buffers, first, end

    def invert(self, drawn: Params, buffers: Buffers) -> tuple[Params, Buffers]:
        """Make a round's noise, and the buffers after it, of its draw and the buffers before it."""
        raise NotImplementedError

    def init(self, like: Params) -> ToeplitzState:
        zeros = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape), like)
        return ToeplitzState(np.asarray(self._first), (zeros,) * self._buffers)

    def next(self, state: ToeplitzState, draw: Draw) -> tuple[Params, ToeplitzState]:
        number = check_horizon(state.round, self._end)
        with jax.enable_x64(True):
            noise, buffers = self.invert(draw([(1.0, (self._first, number))]), state.buffers)
        return noise, ToeplitzState(np.asarray(number + 1), buffers)

    def durable(self, state: ToeplitzState) -> ToeplitzState:
        return state

    def restore(self, durable: ToeplitzState, like: Params, draw: Draw) -> ToeplitzState:
        return ToeplitzState(durable[0], tuple(durable[1]))


class ToeplitzMechanism(StrategyMechanism):
    """Noise of a Toeplitz strategy."""

    def check_coefficients(self, plan: NoisePlan) -> None:
        super().check_coefficients(plan)
        if not (np.isfinite(plan.coefficients).all() and self.diagonal(plan.coefficients) > 0):
            raise ConfigurationError(
                f"the coefficients of the mechanism {self.name} must be finite, and that of its diagonal above 0"
            )

    def diagonal(self, coefficients: tuple[float, ...]) -> float:
        """Give what the strategy, or its inverse, has on its diagonal."""
        return coefficients[0]

    @abstractmethod
    def column(self, coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
        """Write out the first column of the strategy, float64 [rounds]."""

    def inverse_column(self, coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
        """Write out the first column of the strategy's inverse, float64 [rounds]."""
        return inverted(self.column(coefficients, rounds), rounds)

    def stretch_squared(self, plan: NoisePlan, rounds: int, most: int, min_separation: int) -> float:
        """Exactly, by Kalinin and Lampert 2024, "Banded square root matrix factorization", theorem 2."""
        column = self.column(plan.coefficients, rounds)
        if column.min() < 0 or np.any(np.diff(column) > 0):
            raise ConfigurationError("the coefficients of a Toeplitz mechanism must fall, and not below zero")
        # The worst is to take part as often, and as close together, as is allowed, from the first round on.
        shifts = np.pad(column, (0, -rounds % min_separation)).reshape(-1, min_separation)
        sums = np.cumsum(shifts, axis=0)
        sums[most:] -= np.cumsum(shifts, axis=0)[:-most] if most < len(sums) else 0
        return float(np.sum(sums.ravel()[:rounds] ** 2))

    def prefix_variance(self, plan: NoisePlan) -> np.ndarray:
        return np.cumsum(np.cumsum(self.inverse_column(plan.coefficients, plan.rounds)) ** 2)


def inverted(column: Sequence[float] | np.ndarray, rounds: int) -> np.ndarray:
    """The first column, float64 [rounds], of the inverse of a lower-triangular Toeplitz matrix, of whose own first
    column the end may be left out where it is zero."""
    from scipy.signal import lfilter

    return lfilter([1.0], np.trim_zeros(np.asarray(column), "b"), np.eye(1, rounds)[0])
