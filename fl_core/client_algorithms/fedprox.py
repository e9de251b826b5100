"""FedProx: a proximal term keeps clients near the server's parameters.

Source: Li et al. 2020, "Federated optimization in heterogeneous networks" (equation 2): clients minimise
`f(w) + mu / 2 |w - w_server|^2`. Each local step here follows the gradient of that. `client_gradient_clip` bounds the
gradient of f alone.
"""

from dataclasses import dataclass
from typing import Annotated

import jax
from typing_extensions import Doc

from fedlm.fl_core.client_algorithms.interface import Broadcast, ClientAlgorithm, LocalGradient, LocalState
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import NotNegative


@dataclass(frozen=True)
class FedProx(ClientAlgorithm):
    """SGD on a client's loss and its squared distance from the server's parameters.

    Example:
      >>> FedProx(mu=0.1).mu
      0.1
    """

    help = "SGD that is pulled back to the server's parameters (Li et al. 2020)"
    mu: Annotated[NotNegative, Doc("Weight of fedprox's pull to the server's parameters; 0 is sgd.")] = 0.01

    def __post_init__(self) -> None:
        check_value_types(self)

    def step(
        self, server: Broadcast, local: LocalState, gradient: LocalGradient, learning_rate: jax.typing.ArrayLike
    ) -> LocalState:
        def pull(stepped: jax.Array, before: jax.Array, start: jax.Array) -> jax.Array:
            return stepped - learning_rate * self.mu * (before - start)

        stepped = gradient.descend(local.params, learning_rate)
        return local._replace(params=jax.tree_util.tree_map(pull, stepped, local.params, server.params))


ALGORITHM = FedProx
