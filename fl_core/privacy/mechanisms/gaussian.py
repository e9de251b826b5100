"""Independent Gaussian noise in every round (DP-FedAvg, McMahan et al. 2018)."""

from typing import NamedTuple

import numpy as np

from fedlm.fl_core.privacy.mechanisms.interface import Generations, Mechanism, NoisePlan, check_horizon, last_round
from fedlm.fl_core.privacy.noise.noise_source import Draw
from fedlm.models.base import Params


class GaussianState(NamedTuple):
    """Nothing but a counter.

    Attributes:
      round: int64 scalar, the number of the next round.
    """

    round: np.ndarray


class GaussianNoise:
    """A draw of its own for each round."""

    def __init__(self, first: int, end: int):
        self._first, self._end = first, end

    def init(self, like: Params) -> GaussianState:
        return GaussianState(np.asarray(self._first))

    def next(self, state: GaussianState, draw: Draw) -> tuple[Params, GaussianState]:
        number = check_horizon(state.round, self._end)
        return draw([(1.0, (number,))]), GaussianState(np.asarray(number + 1))

    def durable(self, state: GaussianState) -> GaussianState:
        return state

    def restore(self, durable: GaussianState, like: Params, draw: Draw) -> GaussianState:
        return GaussianState(*durable)


class Gaussian(Mechanism):
    """Fresh noise."""

    name = "gaussian"
    label = "fresh in each round"
    summary = "fresh noise in every round (DP-FedAvg)"
    help = "fresh noise in every round (DP-FedAvg)"
    independent_rounds = True

    def clip_norm_moves_every(self, plan: NoisePlan) -> int:
        return 1

    def noise(self, plan: NoisePlan, first: int, end: int) -> GaussianNoise:
        return GaussianNoise(first, end)

    def sensitivity_squared(self, plan: NoisePlan, generations: Generations) -> float:
        rounds = sum(end - first for first, end in generations)
        return plan.participation.bounded(last_round(generations)).most(rounds)

    def prefix_variance(self, plan: NoisePlan) -> np.ndarray:
        return np.arange(1, plan.rounds + 1, dtype=np.float64)


MECHANISM = Gaussian()
