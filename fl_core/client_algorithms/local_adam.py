"""Adam on the client, which begins anew in every round.

Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization" (algorithm 1, with bias correction), as the
client optimizer of Wang et al. 2021, "Local adaptivity in federated learning".
"""

from dataclasses import dataclass
from typing import Annotated

import jax
import optax
from typing_extensions import Doc

from fedlm.fl_core.client_algorithms.interface import Broadcast, ClientAlgorithm, LocalGradient, LocalState
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import Decay, Positive


@dataclass(frozen=True)
class LocalAdam(ClientAlgorithm):
    """Adam from the server's parameters, with moments of zero at a client's first step.

    Example:
      >>> LocalAdam(beta2=0.99).beta2
      0.99
    """

    help = "Adam, whose moments begin at zero in every round"
    beta1: Annotated[Decay, Doc("Decay of the first moment of local_adam.")] = 0.9
    beta2: Annotated[Decay, Doc("Decay of the second moment of local_adam.")] = 0.999
    epsilon: Annotated[Positive, Doc("Added to the root of the second moment of local_adam.")] = 1e-8

    def __post_init__(self) -> None:
        check_value_types(self)

    def _moments(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)

    def init(self, server: Broadcast) -> LocalState:
        return LocalState(server.params, self._moments().init(server.params))

    def step(
        self, server: Broadcast, local: LocalState, gradient: LocalGradient, learning_rate: jax.typing.ArrayLike
    ) -> LocalState:
        direction, moments = self._moments().update(gradient.clipped(), local.memory)
        params = jax.tree_util.tree_map(lambda p, d: p - learning_rate * d, local.params, direction)
        return LocalState(params, moments)


ALGORITHM = LocalAdam
