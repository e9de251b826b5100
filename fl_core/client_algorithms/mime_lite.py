"""MimeLite with momentum: clients step with the server's momentum, which they do not change.

Source: Karimireddy et al. 2021, "Breaking the centralized barrier for cross-device federated learning" (algorithm 1,
with SGDm). Clients also send the gradient of their whole loss at the server's parameters, taken over the batches of
their steps, and the server's momentum follows its mean. The paper's server takes the mean of the clients' parameters,
which is the server optimizer `fedavg` with the learning rate 1.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from typing_extensions import Doc

from fedlm.fl_core.client_algorithms.interface import Broadcast, ClientAlgorithm, LocalGradient, LocalState
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import Decay
from fedlm.models.base import Params


@dataclass(frozen=True)
class MimeLite(ClientAlgorithm):
    """SGD along a mixture of the batch's gradient and the server's momentum.

    Example:
      >>> MimeLite(momentum=0.5).momentum
      0.5
    """

    help = (
        "SGD with the server's momentum, which follows gradients that clients send beside their updates, twice the "
        "bytes and about twice the computation; no privacy covers it; the paper's has the server optimizer fedavg with "
        "learning rate 1 (Karimireddy et al. 2021)"
    )
    momentum: Annotated[Decay, Doc("Part of mime_lite's steps, and of its next momentum, that is the momentum.")] = 0.9

    def __post_init__(self) -> None:
        check_value_types(self)

    def init(self, server: Broadcast) -> LocalState:
        nothing = jax.tree_util.tree_map(jnp.zeros_like, server.params)
        return LocalState(server.params, (nothing, jnp.zeros(())))

    def step(
        self, server: Broadcast, local: LocalState, gradient: LocalGradient, learning_rate: jax.typing.ArrayLike
    ) -> LocalState:
        at_server = gradient.at(server.params)
        total, tokens = local.memory
        # The gradient of the whole loss is the mean over its targets.
        weight = at_server.tokens * at_server.scale
        total = jax.tree_util.tree_map(lambda t, g: t + weight * g, total, at_server.unclipped)
        direction = self._mixed(gradient.clipped(), server.memory)
        params = jax.tree_util.tree_map(lambda p, d: p - learning_rate * d, local.params, direction)
        return LocalState(params, (total, tokens + at_server.tokens))

    def finish(self, server: Broadcast, local: LocalState) -> tuple[Params, Params]:
        total, tokens = local.memory
        gradient = jax.tree_util.tree_map(lambda t: t / jnp.maximum(tokens, 1.0), total)
        return super().finish(server, local), gradient

    def init_server(self, params: Params) -> Params:
        return jax.tree_util.tree_map(jnp.zeros_like, params)

    def update_server(self, memory: Params, mean: tuple[Params, Params]) -> tuple[Params, Params]:
        delta, gradient = mean
        return delta, self._mixed(gradient, memory)

    def _mixed(self, gradient: Any, momentum: Any) -> Any:
        return jax.tree_util.tree_map(lambda g, m: (1 - self.momentum) * g + self.momentum * m, gradient, momentum)


ALGORITHM = MimeLite
