"""Independent Gaussian noise in every round (DP-FedAvg, McMahan et al. 2018)."""

from typing import NamedTuple

import numpy as np

from fedlm.fl_core.privacy.mechanisms.planned_rounds import check_horizon
from fedlm.fl_core.privacy.noise_source import Draw
from fedlm.fl_core.privacy.plan import PrivacyPlan
from fedlm.models.base import Params


class GaussianState(NamedTuple):
    """Nothing but a counter.

    Attributes:
      round: int64 scalar, the number of the next round.
    """

    round: np.ndarray


class Gaussian:
    """See `fedlm.fl_core.privacy.mechanisms.interface.NoiseMechanism`."""

    def __init__(self, plan: PrivacyPlan, first: int, end: int):
        self._first, self._end = first, end

    def init(self, like: Params) -> GaussianState:
        """See `NoiseMechanism.init`."""
        return GaussianState(np.asarray(self._first))

    def next(self, state: GaussianState, draw: Draw) -> tuple[Params, GaussianState]:
        """See `NoiseMechanism.next`."""
        number = check_horizon(state.round, self._end)
        return draw([(1.0, (number,))]), GaussianState(np.asarray(number + 1))

    def durable(self, state: GaussianState) -> GaussianState:
        """See `NoiseMechanism.durable`."""
        return state

    def restore(self, durable: GaussianState, like: Params, draw: Draw) -> GaussianState:
        """See `NoiseMechanism.restore`."""
        return GaussianState(*durable)
