"""What a client algorithm is: pure functions that a client calls at its beginning, at each local step and at its end.

All are traced by JAX. A simulation calls them within its compiled lanes, a deployment on the clients' devices. What an
algorithm remembers lies on the server, and travels to clients with the parameters; or a client keeps it to itself from
round to round, and it travels nowhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.models.base import Params
from fedlm.models.losses import ExampleSums


class Broadcast(NamedTuple):
    """What the server sends to every client of a round."""

    params: Params
    memory: Any = ()  # the algorithm's, on the server: a pytree of float32 arrays


class LocalState(NamedTuple):
    """Where one client stands in its local training."""

    params: Params
    memory: Any = ()  # the algorithm's, on this client in this round: a pytree of arrays


class LocalGradient(NamedTuple):
    """The gradient of the mean loss over the targets of one local step's batch.

    Example:
      >>> one = jnp.ones(())
      >>> half = LocalGradient({"w": jnp.array([3.0, 4.0])}, one / 2, 5 * one, 7 * one, at=lambda params: half)
      >>> half.clipped()["w"].tolist()
      [1.5, 2.0]
    """

    unclipped: Params
    scale: jax.Array  # float32 scalar that clipping multiplies it by, 1 where it is not clipped
    norm: jax.Array  # float32 scalar, the global norm of `unclipped`
    tokens: jax.Array  # float32 scalar, the targets that the loss is a mean of
    at: Callable[[Params], "LocalGradient"]  # the same batch's gradient at other parameters

    def clipped(self) -> Params:
        """Make the gradient as local steps follow it."""
        return jax.tree_util.tree_map(lambda g: self.scale * g, self.unclipped)

    def descend(self, params: Params, learning_rate: jax.typing.ArrayLike) -> Params:
        """Take a step of SGD from parameters."""
        step_size = learning_rate * self.scale
        return jax.tree_util.tree_map(lambda p, g: p - step_size * g, params, self.unclipped)


@dataclass(frozen=True)
class ClientAlgorithm(ABC):
    """How clients train from the server's parameters, and what becomes of what they send.

    One of your own is a frozen dataclass with a `step`; its fields are its constants. Two of the same type with equal
    constants are the same, so that nothing is compiled twice for them. What is not overridden is that of SGD.

    Attributes:
      help: what it is, for the help of `--client-algorithm`.
      trains: whether clients take steps; else they only `score`, and the server's parameters stay as they are.

    Example:
      >>> @dataclass(frozen=True)
      ... class SignSgd(ClientAlgorithm):
      ...     def step(self, server, local, gradient, learning_rate):
      ...         signs = jax.tree_util.tree_map(jnp.sign, gradient.unclipped)
      ...         moved = jax.tree_util.tree_map(lambda p, s: p - learning_rate * s, local.params, signs)
      ...         return local._replace(params=moved)
      >>> SignSgd() == SignSgd()
      True
    """

    help: ClassVar[str] = ""
    trains: ClassVar[bool] = True

    def init(self, server: Broadcast) -> LocalState:
        """Make a client's state before its first step."""
        return LocalState(server.params)

    def init_client(self, params: Params) -> Any:
        """Make what a client keeps to itself before it first takes part, of the server's parameters then: a pytree of
        float32 arrays."""
        return ()

    def begin(self, server: Broadcast, kept: Any) -> LocalState:
        """Make the state before its first step of a client that has kept something."""
        return self.init(server)

    def keep(self, local: LocalState) -> Any:
        """Make what a client keeps after its last step, of the structure of what `init_client` made."""
        return ()

    @abstractmethod
    def step(
        self, server: Broadcast, local: LocalState, gradient: LocalGradient, learning_rate: jax.typing.ArrayLike
    ) -> LocalState:
        """Take a local step.

        Args:
          server: what the server sent.
          local: the client's state.
          gradient: of the step's batch at `local.params`.
          learning_rate: of the clients, a scalar.
        """

    def score(self, local: LocalState, sums: ExampleSums) -> LocalState:
        """Take in a batch's sums at the server's parameters in place of a step, where the algorithm does not train."""
        return local

    def finish(self, server: Broadcast, local: LocalState) -> Any:
        """Make what the client sends after its last step: a pytree of float32 arrays, of which the server gets the
        weighted mean over clients."""
        return jax.tree_util.tree_map(jnp.subtract, server.params, local.params)

    def bounded(self, sent: Any) -> Any:
        """Make of what one client sent what a server that sees it counts, each number within its own bounds."""
        return sent

    def init_server(self, params: Params) -> Any:
        """Make what the server remembers before the first round: a pytree of float32 arrays."""
        return ()

    def update_server(self, memory: Any, mean: Any) -> tuple[Params, Any]:
        """Take in a round's mean of what clients sent.

        Args:
          memory: what the server remembers.
          mean: of what `finish` made, of the same structure.

        Returns:
          The pseudo-gradient that the server optimizer steps with, and what the server remembers from now on.
          Parameters that have None in place of a gradient stay as they are.
        """
        return mean, memory

    def report(self, total: Any, noise: float) -> dict[str, float]:
        """Say what a round's row has of the sum of what clients sent, with noise of a standard deviation."""
        return {}


def sent_by_server(algorithm: ClientAlgorithm, params: Params) -> Broadcast:
    """Say of which shapes is what the server sends; `params` are arrays or shapes, the result is shapes. Raises
    ConfigurationError where the algorithm fails."""
    return jax.eval_shape(Broadcast, params, _shapes(algorithm, "init_server", params))


def sent_by_client(algorithm: ClientAlgorithm, params: Params) -> Any:
    """Say of which shapes is what a client sends; `params` are arrays or shapes, the result is shapes. Raises
    ConfigurationError where the algorithm fails."""
    server = sent_by_server(algorithm, params)
    return _shapes(algorithm, "finish", server, _shapes(algorithm, "init", server))


def kept_by_client(algorithm: ClientAlgorithm, params: Params) -> Any:
    """Say of which shapes is what a client keeps to itself; `params` are arrays or shapes, the result is shapes. Raises
    ConfigurationError where the algorithm fails."""
    return _shapes(algorithm, "init_client", params)


def all_finite(tree: Any) -> jax.Array:
    """Say whether each number of a tree is finite, a bool scalar."""
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(tree)]))


def check_usable(algorithm: ClientAlgorithm, params: Params) -> None:
    """Try a round without computing anything; `params` are arrays or shapes.

    Raises:
      ConfigurationError: the algorithm fails, or makes something of other structure, shapes or dtypes than it must.
    """
    kind, scalar = type(algorithm).__name__, jax.ShapeDtypeStruct((), jnp.float32)

    def whole(pseudo_gradient: Any) -> Any:
        # One of another structure is refused below.
        missing = None in jax.tree_util.tree_leaves(pseudo_gradient, is_leaf=lambda node: node is None)
        return filled(pseudo_gradient, params) if missing else pseudo_gradient

    server, kept = sent_by_server(algorithm, params), kept_by_client(algorithm, params)
    local = _shapes(algorithm, "init", server)
    stepped = _shapes(algorithm, "step", server, local, params, scalar)
    sent = _shapes(algorithm, "finish", server, stepped)
    made = _shapes(algorithm, "update_server", server.memory, sent) if algorithm.trains else server
    if not isinstance(stepped, LocalState) or _kinds(stepped) != _kinds(local):
        raise ConfigurationError(
            f"{kind}.step must make a LocalState of the structure, shapes and dtypes of that of init, but of "
            f"{_described(local)} it makes {_described(stepped)}"
        )
    if not isinstance(made, tuple) or len(made) != 2:
        raise ConfigurationError(f"{kind}.update_server must make a pair, of pseudo-gradient and memory")
    for name, tree in (("init_server", server.memory), ("init_client", kept), ("finish", sent)):
        if {leaf.dtype for leaf in jax.tree_util.tree_leaves(tree)} - {jnp.dtype(jnp.float32)}:
            raise ConfigurationError(f"{kind}.{name} must make float32 arrays, but makes {_described(tree)}")
    for name, what, found, expected in (
        ("update_server", "a pseudo-gradient like the parameters", whole(made[0]), params),
        ("update_server", "a memory like that of init_server", made[1], server.memory),
        ("begin", "what init does", _shapes(algorithm, "begin", server, kept), local),
        ("keep", "what init_client does", _shapes(algorithm, "keep", stepped), kept),
    ):
        if _kinds(found) != _kinds(expected):
            raise ConfigurationError(
                f"{kind}.{name} must make {what}, {_described(expected)}, but makes {_described(found)}"
            )


def gradient_of_all(pseudo_gradient: Params, like: Params) -> Params:
    """Put zeros, like the parameters, in the place of what a pseudo-gradient has not."""
    return filled(pseudo_gradient, jax.tree_util.tree_map(jnp.zeros_like, like))


def changed_params(pseudo_gradient: Params, after: Params, before: Params) -> Params:
    """Take the parameters after a step, but those before it where there was no pseudo-gradient."""
    changed = jax.tree_util.tree_map(lambda new, gradient: None if gradient is None else new, after, pseudo_gradient)
    return filled(changed, before)


def filled(partial: Any, others: Any) -> Any:
    """Put leaves of a whole tree in the place of each None in one that has only some of them."""
    return jax.tree_util.tree_map(
        lambda one, other: other if one is None else one, partial, others, is_leaf=lambda node: node is None
    )


def check_private(algorithm: ClientAlgorithm, params: Params) -> None:
    """Refuse an algorithm whose clients send anything beside the delta of parameters, or of some of them, for which
    noise is made.

    Raises:
      ConfigurationError: they do.
    """
    sent, known = (
        {str(path): (leaf.shape, leaf.dtype) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (sent_by_client(algorithm, params), params)
    )
    # What one sends that does not train takes the place of an update.
    if algorithm.trains and not sent.items() <= known.items():
        raise ConfigurationError(
            f"with the client algorithm {type(algorithm).__name__} a client sends more than its update, or something "
            "else. The clipping and noise of privacy are made for the update alone. Take another client algorithm, or "
            f"leave {setting('privacy')} out"
        )


def _shapes(algorithm: ClientAlgorithm, name: str, *given: Any) -> Any:
    """Say of which shapes is what a function of the algorithm makes of shapes; `step` is given its gradient's."""

    def step(server: Broadcast, local: LocalState, unclipped: Params, scalar: jax.Array) -> LocalState:
        gradient = LocalGradient(unclipped, scalar, scalar, scalar, at=lambda params: gradient)
        return algorithm.step(server, local, gradient, scalar)

    try:
        return jax.eval_shape(step if name == "step" else getattr(algorithm, name), *given)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{type(algorithm).__name__}.{name} cannot be used with this model ({type(error).__name__}: {error})"
        ) from error


def _kinds(tree: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _described(tree: Any) -> str:
    """Write a pytree with the dtypes and shapes of its arrays, cut where it is long."""
    text = str(jax.tree_util.tree_map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)).replace("'", "")
    return text if len(text) <= 200 else f"{text[:200]}..."
