"""Plain SGD (FedAvg, McMahan et al. 2017)."""

from dataclasses import dataclass

import jax

from fedlm.fl_core.client_algorithms.interface import Broadcast, ClientAlgorithm, LocalGradient, LocalState


@dataclass(frozen=True)
class Sgd(ClientAlgorithm):
    """SGD from the server's parameters.

    Example:
      >>> Sgd() == PLAIN_SGD
      True
    """

    help = "plain SGD (FedAvg)"

    def step(
        self, server: Broadcast, local: LocalState, gradient: LocalGradient, learning_rate: jax.typing.ArrayLike
    ) -> LocalState:
        return local._replace(params=gradient.descend(local.params, learning_rate))


ALGORITHM = Sgd
PLAIN_SGD = Sgd()
