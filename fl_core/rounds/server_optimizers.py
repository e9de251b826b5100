"""Server optimizers over pseudo-gradients, by name in `SERVER_OPTIMIZERS`.

Source: Reddi et al. 2021, "Adaptive federated optimization". Each is an optax transform of the mean delta into
a direction; the server then steps `params - learning_rate * direction`. FedAdam and FedYogi correct the
bias of their moments, as optax (and TFF, and FedJAX) do and Algorithm 2 of the paper does not. `epsilon` is the
paper's tau, but in FedAdagrad, where optax adds it to the sum of squares, within the root.

An optimizer of one's own is any optax one, used as optax means it: the mean delta is its gradient, and its updates are
added to the parameters. It is a `GradientTransformation`, which brings its own learning rate, or a function that makes
one of a learning rate (`optax.adamw`, say), which is then the run's.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Decay, Positive
from fedlm.models.base import Params
from fedlm.models.imported_names import import_named, is_imported_name

DEFAULT_SERVER_RATE = 0.01


@dataclass(frozen=True)
class ServerOptimizerConfig:
    """Which server optimizer, and its constants; `TrainingSettings` has an option for each.

    Attributes:
      name: a key of `SERVER_OPTIMIZERS`, or `module:NAME` for an optimizer of one's own in a module that Python finds.
      momentum: of FedAvgM.
      beta1: decay of the first moment, of FedAdam and FedYogi.
      beta2: decay of the second moment, of FedAdam and FedYogi.
      epsilon: added to the root of the second moment, of FedAdam and FedYogi; to the sum of squares within the root, of
        FedAdagrad.
    """

    name: str = "fedadam"
    momentum: Decay = 0.9
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8

    def __post_init__(self) -> None:
        if self.name not in SERVER_OPTIMIZERS and not is_imported_name(self.name):
            raise ConfigurationError(
                f"{setting('server_optimizer')} is {self.name!r}, but must be one of {', '.join(SERVER_OPTIMIZERS)}, "
                "or module:NAME for an optax optimizer of your own"
            )
        check_value_types(self)


SERVER_OPTIMIZERS: dict[str, Callable[[ServerOptimizerConfig], optax.GradientTransformation]] = {
    "fedavg": lambda config: optax.identity(),
    "fedavgm": lambda config: optax.trace(decay=config.momentum),
    "fedadam": lambda config: optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
    "fedadagrad": lambda config: optax.scale_by_rss(initial_accumulator_value=0.0, eps=config.epsilon),
    "fedyogi": lambda config: optax.scale_by_yogi(
        config.beta1, config.beta2, config.epsilon, initial_accumulator_value=0.0
    ),
}
"""The server optimizers by name, as transforms of the mean delta into a direction to go against.

Example:
  >>> "fedadam" in SERVER_OPTIMIZERS
  True
"""

if TYPE_CHECKING:
    ServerOptimizerName = str
else:
    ServerOptimizerName = Literal[tuple(SERVER_OPTIMIZERS)] | str


OptaxOptimizer: TypeAlias = optax.GradientTransformation | Callable[[Any], optax.GradientTransformation]
"""An optimizer of one's own: an optax one, or a function that makes one of a learning rate."""


@dataclass(frozen=True)
class OwnServerOptimizer:
    """An optimizer that a program brings by object; see the beginning of this module."""

    optimizer: OptaxOptimizer

    def __post_init__(self) -> None:
        if not _is_optax_optimizer(self.optimizer):
            raise ConfigurationError(
                f"{setting('server_optimizer')} is a {type(self.optimizer).__name__}, but must be an optax optimizer, "
                "a function that makes one of a learning rate (optax.adam, say), or a name"
            )
        try:
            hash(self)
        except TypeError as error:
            raise ConfigurationError(
                f"{setting('server_optimizer')} is a {type(self.optimizer).__name__} that cannot be hashed ({error}); "
                "give a function, or an optax optimizer"
            ) from error

    @property
    def has_own_rate(self) -> bool:
        """Whether the run's learning rate does nothing."""
        return isinstance(self.optimizer, optax.GradientTransformation)

    def at(self, learning_rate: Any) -> optax.GradientTransformation:
        """Make the transformation of pseudo-gradients into updates that are to be added to the parameters."""
        if isinstance(self.optimizer, optax.GradientTransformation):
            return self.optimizer
        made = self.optimizer(learning_rate)
        if not isinstance(made, optax.GradientTransformation):
            raise ConfigurationError(
                f"{setting('server_optimizer')} makes a {type(made).__name__} of a learning rate, but must make an "
                "optax optimizer"
            )
        return made


ServerOptimizer: TypeAlias = ServerOptimizerConfig | OwnServerOptimizer
"""By name, with constants, or by object."""


def own_server_optimizer(server: ServerOptimizer) -> OwnServerOptimizer | None:
    """Find the optimizer of one's own that is meant; None for one of the registry. Raises ConfigurationError where a
    name leads to none."""
    if isinstance(server, OwnServerOptimizer):
        return server
    return _imported(server.name) if is_imported_name(server.name) else None


@functools.cache
def _imported(name: str) -> OwnServerOptimizer:
    expected = "an optax optimizer, or a function that makes one of a learning rate"
    return OwnServerOptimizer(import_named(name, what="server_optimizer", expected=expected, fits=_is_optax_optimizer))


def _is_optax_optimizer(found: Any) -> bool:
    return isinstance(found, optax.GradientTransformation) or callable(found)


def check_server_rate(server: ServerOptimizer, learning_rate: float, warmup_rounds: int) -> None:
    """Refuse a learning rate that does nothing, since the optimizer brings its own. Raises ConfigurationError."""
    own = own_server_optimizer(server)
    if own is None or not own.has_own_rate:
        return
    for name, value, default in (
        ("server_learning_rate", learning_rate, DEFAULT_SERVER_RATE),
        ("server_warmup_rounds", warmup_rounds, 0),
    ):
        if value != default:
            raise ConfigurationError(
                f"{setting(name)} is {value}, which does nothing with a server optimizer that brings its own learning "
                "rate; leave it out, or give a function that makes the optimizer of a learning rate"
            )


class ServerState(NamedTuple):
    """The parameters, the server optimizer's state, and what the client algorithm remembers, between rounds."""

    params: Params
    optimizer: Any
    algorithm: Any = ()


def init_server(server: ServerOptimizer, params: Params) -> ServerState:
    """Make the state before round 0 from the model's first parameters. Raises ConfigurationError where an optimizer of
    one's own cannot be used with them."""
    own = own_server_optimizer(server)
    if own is None:
        assert isinstance(server, ServerOptimizerConfig)
        return ServerState(params, SERVER_OPTIMIZERS[server.name](server).init(params))
    _check_usable(own, params)
    return ServerState(params, jax.tree_util.tree_map(jnp.asarray, own.at(1.0).init(params)))


def _check_usable(own: OwnServerOptimizer, params: Params) -> None:
    """Try a step without computing anything."""

    def step(params: Params) -> tuple[ServerState, ServerState]:
        before = ServerState(params, own.at(1.0).init(params))
        return before, server_step(own, before, params, jnp.ones(()))

    try:
        before, after = jax.eval_shape(step, params)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the server optimizer cannot make a step from the mean update ({type(error).__name__}: {error})"
        ) from error
    if jax.tree_util.tree_map(_kind, before) != jax.tree_util.tree_map(_kind, after):
        raise ConfigurationError("the server optimizer's state has other shapes or dtypes after a step than before it")
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree_util.tree_leaves(before)):
        raise ConfigurationError(
            "the server optimizer's state holds a typed random key, which no checkpoint can hold; make it of "
            "jax.random.PRNGKey, which is an array"
        )


def _kind(leaf: Any) -> tuple[Any, Any]:
    return leaf.shape, leaf.dtype


def server_step(
    server: ServerOptimizer, state: ServerState, pseudo_gradient: Params, learning_rate: jax.Array
) -> ServerState:
    """Apply one round's pseudo-gradient, the mean delta: a step of a scalar learning rate goes against it."""
    own = own_server_optimizer(server)
    if own is not None:
        updates, optimizer = own.at(learning_rate).update(pseudo_gradient, state.optimizer, state.params)
        return ServerState(optax.apply_updates(state.params, updates), optimizer)
    assert isinstance(server, ServerOptimizerConfig)
    direction, optimizer = SERVER_OPTIMIZERS[server.name](server).update(pseudo_gradient, state.optimizer, state.params)
    params = jax.tree_util.tree_map(lambda p, d: p - learning_rate * d, state.params, direction)
    return ServerState(params, optimizer)
