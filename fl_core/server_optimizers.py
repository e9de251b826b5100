"""Server optimizers over pseudo-gradients: FedAvg, FedAvgM, FedAdam, FedAdagrad and FedYogi.

Source: Reddi et al. 2021, "Adaptive federated optimization". Each is an optax transform of the mean delta into
a direction; the server then steps `params - learning_rate * direction`. FedAdam and FedYogi correct the
bias of their moments, as optax (and TFF, and FedJAX) do and Algorithm 2 of the paper does not; `epsilon` is the
paper's tau.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import optax

from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.base import Params


@dataclass(frozen=True)
class ServerOptimizerConfig:
    """Which server optimizer, and its constants.

    Attributes:
      name: a key of `SERVER_OPTIMIZERS`.
      momentum: of FedAvgM.
      beta1: decay of the first moment, of FedAdam and FedYogi.
      beta2: decay of the second moment, of FedAdam and FedYogi.
      epsilon: added to the root of the second moment, of FedAdam, FedAdagrad and FedYogi.
    """

    name: str = "fedadam"
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        if self.name not in SERVER_OPTIMIZERS:
            raise ConfigurationError(
                f"server_optimizer is {self.name!r}, but must be one of {', '.join(SERVER_OPTIMIZERS)}"
            )
        for field in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ConfigurationError(f"{field} is {getattr(self, field)}, but must lie in [0, 1)")
        if not self.epsilon > 0:
            raise ConfigurationError(f"epsilon is {self.epsilon}, but must be positive")


SERVER_OPTIMIZERS: dict[str, Callable[[ServerOptimizerConfig], optax.GradientTransformation]] = {
    "fedavg": lambda config: optax.identity(),
    "fedavgm": lambda config: optax.trace(decay=config.momentum),
    "fedadam": lambda config: optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
    "fedadagrad": lambda config: optax.scale_by_rss(initial_accumulator_value=0.0, eps=config.epsilon),
    "fedyogi": lambda config: optax.scale_by_yogi(
        config.beta1, config.beta2, config.epsilon, initial_accumulator_value=0.0
    ),
}

if TYPE_CHECKING:
    ServerOptimizerName = str
else:
    ServerOptimizerName = Literal[tuple(SERVER_OPTIMIZERS)]


class ServerState(NamedTuple):
    """The parameters, and the server optimizer's state, between rounds."""

    params: Params
    optimizer: Any


def init_server(config: ServerOptimizerConfig, params: Params) -> ServerState:
    """Make the state before round 0 from the model's first parameters."""
    return ServerState(params, SERVER_OPTIMIZERS[config.name](config).init(params))


def server_step(
    config: ServerOptimizerConfig, state: ServerState, pseudo_gradient: Params, learning_rate: jax.Array
) -> ServerState:
    """Apply one round's pseudo-gradient, the mean delta: a step of a scalar learning rate goes against it."""
    direction, optimizer = SERVER_OPTIMIZERS[config.name](config).update(pseudo_gradient, state.optimizer, state.params)
    params = jax.tree_util.tree_map(lambda p, d: p - learning_rate * d, state.params, direction)
    return ServerState(params, optimizer)
