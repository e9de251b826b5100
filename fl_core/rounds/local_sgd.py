"""What a client does with its text: local steps from the server's parameters over its own batches."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedlm.fl_core.client_algorithms.interface import Broadcast, ClientAlgorithm, LocalGradient, LocalState
from fedlm.fl_core.client_algorithms.sgd import PLAIN_SGD
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.models.base import Batch, Model, Params, batch_loss, weigh_examples
from fedlm.models.special_tokens import PAD_ID

CapOrder = Literal["shuffle_then_cap", "cap_then_shuffle"]
"""Whether `max_examples` keeps the first of a client's shuffled examples, others in every epoch, or the first in the
order in which they are stored, the same in every round."""


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains. The defaults are those of the published Stack Overflow task.

    Published code differs in how it makes batches. The Stack Overflow task of google-research/federated has
    `max_examples` with `cap_then_shuffle` and `batches_across_epochs`. FedJAX's `shuffle_repeat_batch` has
    `max_batches` with the latter, and fills the last batch with examples of one epoch more, which is not done here.

    Attributes:
      batch_size: examples per local step.
      epochs: passes over the client's examples.
      max_batches: at most so many local steps a round.
      gradient_clip: clip each local gradient to this global norm; None leaves gradients alone, infinity only measures
        their norms.
      max_examples: at most so many of a client's examples an epoch; the client also counts for no more in the
        weighted mean. None takes all.
      cap_order: which examples those are, see `CapOrder`.
      batches_across_epochs: cut the epochs, laid end to end, into batches, so that only the last batch may be partly
        filled; else each epoch ends with a batch of its own that may be.
      algorithm: what a client does with its gradients.
      draws_dropout: whether each example of each step has a key, by which the model drops what it drops in training.
    """

    batch_size: int = 10
    epochs: int = 1
    max_batches: int = 120
    gradient_clip: float | None = None
    max_examples: int | None = None
    cap_order: CapOrder = "shuffle_then_cap"
    batches_across_epochs: bool = False
    algorithm: ClientAlgorithm = PLAIN_SGD
    draws_dropout: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "max_batches", "max_examples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{setting(name)} is {value}, but must be at least 1")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ConfigurationError(f"gradient_clip is {self.gradient_clip}, but must be positive (or left out)")
        if self.cap_order not in get_args(CapOrder):
            raise ConfigurationError(f"cap_order is {self.cap_order!r}, but must be one of {get_args(CapOrder)}")

    def count_examples(self, num_examples: npt.ArrayLike) -> np.ndarray:
        """Count the examples that clients train on in an epoch, of int [clients], or one int, that they have."""
        return np.asarray(num_examples if self.max_examples is None else np.minimum(num_examples, self.max_examples))

    @property
    def most_examples(self) -> int:
        """How many examples a client can train on in a round, and count for, at most."""
        batches = self.max_batches * self.batch_size
        return batches if self.max_examples is None else min(batches, self.max_examples)

    def count_steps(self, num_examples: npt.ArrayLike) -> np.ndarray:
        """Count the local steps that `batch_rows` gives to clients with int [clients], or one int, examples."""
        rows = self.rows_per_epoch(num_examples) * self.epochs
        return np.minimum(-(-rows // self.batch_size), self.max_batches)

    def rows_per_epoch(self, num_examples: npt.ArrayLike) -> np.ndarray:
        """Count the rows of batches that an epoch takes up, those that are not filled included."""
        examples = self.count_examples(num_examples)
        return examples if self.batches_across_epochs else -(-examples // self.batch_size) * self.batch_size


class TrainingSums(NamedTuple):
    """What is known of training, in the making; all float32 scalars.

    Attributes:
      loss: cross-entropy in nats, summed over non-PAD targets.
      tokens: number of those targets.
      gradient_norm: global norm of the gradient before it is clipped, if it is, summed over steps.
    """

    loss: jax.Array
    tokens: jax.Array
    gradient_norm: jax.Array

    @classmethod
    def zero(cls) -> Self:
        """Make the sums of no step."""
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def batch_rows(num_examples: int, training: LocalTraining, rng: np.random.Generator) -> np.ndarray:
    """Choose which examples make up each local step.

    Every epoch shuffles the examples anew. The cap on batches is applied last, so it keeps whole batches of the
    shuffled examples; see `LocalTraining` for the cap on examples and the ends of epochs.

    Args:
      num_examples: how many examples the client has.
      training: batch size, epochs and caps.
      rng: the client's shuffling stream of this round.

    Returns:
      int64 [steps, batch_size]: rows of the client's examples, -1 where a batch is not filled.
    """
    kept, steps = int(training.count_examples(num_examples)), int(training.count_steps(num_examples))
    shuffled = kept if training.cap_order == "cap_then_shuffle" else num_examples
    per_epoch, wanted = int(training.rows_per_epoch(num_examples)), steps * training.batch_size
    rows = np.full((min(training.epochs, -(-wanted // max(per_epoch, 1))), per_epoch), -1)
    for epoch in rows:
        epoch[:kept] = rng.permutation(shuffled)[:kept]
    filled = np.append(rows, np.full(-rows.size % training.batch_size, -1))
    return filled[:wanted].reshape(steps, training.batch_size)


def dropout_keys(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a key for the dropout of each example of some local steps.

    Args:
      rows: int [steps, batch_size] of `batch_rows`.
      rng: the client's stream of dropout in this round.

    Returns:
      uint32 [steps, batch_size, 2]; the first steps' do not depend on how many follow.
    """
    return rng.integers(1 << 32, size=(*rows.shape, 2), dtype=np.uint32)


def local_gradient(
    model: Model, params: Params, batch: Batch, gradient_clip: float | None
) -> tuple[LocalGradient, TrainingSums]:
    """Differentiate the mean loss of a local step's batch.

    Args:
      model: the model.
      params: where.
      batch: the examples; the gradient of a batch without any is zero.
      gradient_clip: largest global norm of the gradient, or None.

    Returns:
      The gradient, and the sums of this step; its loss is that before the step.
    """
    (_, sums), gradient = jax.value_and_grad(lambda p: batch_loss(model, p, batch), has_aux=True)(params)
    # A step that waits for the norm waits for all uses of the old parameters too, and so can be taken in place. Where
    # nothing made it wait, the compiler would copy all parameters at every step: the norm costs less.
    norm, largest = global_norm(gradient), math.inf if gradient_clip is None else gradient_clip
    scale = jnp.minimum(1.0, largest / jnp.maximum(norm, 1e-30))
    weighted = weigh_examples(sums, batch)
    tokens = jnp.sum(weighted.tokens)

    def at(others: Params) -> LocalGradient:
        return local_gradient(model, others, batch, gradient_clip)[0]

    return LocalGradient(gradient, scale, norm, tokens, at), TrainingSums(jnp.sum(weighted.loss), tokens, norm)


def local_step(
    model: Model, params: Params, batch: Batch, *, learning_rate: jax.typing.ArrayLike, gradient_clip: float | None
) -> tuple[Params, TrainingSums]:
    """Take one step of SGD.

    Args:
      model: the model.
      params: the client's parameters.
      batch: its examples; a batch without any leaves the parameters as they are.
      gradient_clip: largest global norm of the gradient, or None.

    Returns:
      The stepped parameters, and the sums of this step; its loss is that before the step.
    """
    gradient, sums = local_gradient(model, params, batch, gradient_clip)
    return gradient.descend(params, learning_rate), sums


def algorithm_step(
    model: Model,
    algorithm: ClientAlgorithm,
    server: Broadcast,
    local: LocalState,
    *,
    batch: Batch,
    learning_rate: jax.typing.ArrayLike,
    gradient_clip: float | None,
) -> tuple[LocalState, TrainingSums]:
    """Take one local step of an algorithm, or score a batch, given what the server sent; otherwise as `local_step`."""
    if not algorithm.trains:
        batch = batch._replace(dropout=None)
        return algorithm.score(local, weigh_examples(model.loss(server.params, batch), batch)), TrainingSums.zero()
    gradient, sums = local_gradient(model, local.params, batch, gradient_clip)
    return algorithm.step(server, local, gradient, learning_rate), sums


def train_client(
    model: Model,
    server: Broadcast,
    sequences: np.ndarray,
    training: LocalTraining,
    *,
    rng: np.random.Generator,
    learning_rate: float,
    before_step: Callable[[], None] | None = None,
    dropout_rng: np.random.Generator | None = None,
    kept: Any = None,
) -> tuple[LocalState, TrainingSums]:
    """Train on one client's examples, int32 [examples, length + 1], step by step.

    Args:
      model: the model.
      server: what the server sent.
      sequences: the examples.
      training: algorithm, batch size, epochs and caps.
      rng: the stream that shuffles.
      learning_rate: of the steps.
      before_step: called before each step; training ends with what it raises.
      dropout_rng: the stream of the keys of dropout; only needed where the training draws them.
      kept: what the client has kept to itself; None where it takes part for the first time.

    Returns:
      The client's state after the last step, and the sums over all steps.
    """
    local = training.algorithm.init(server) if kept is None else training.algorithm.begin(server, kept)
    sums = TrainingSums.zero()
    steps = batch_rows(len(sequences), training, rng)
    assert dropout_rng is not None or not training.draws_dropout
    keys = dropout_keys(steps, dropout_rng) if dropout_rng is not None and training.draws_dropout else None
    for number, rows in enumerate(steps):
        if before_step is not None:
            before_step()
        dropout = None if keys is None else jnp.asarray(keys[number])
        batch = Batch(*map(jnp.asarray, gather_batch(sequences, rows)))._replace(dropout=dropout)
        local, sums = _step(
            model,
            training.algorithm,
            server,
            local,
            sums=sums,
            batch=batch,
            learning_rate=learning_rate,
            gradient_clip=training.gradient_clip,
        )
    return local, sums


@functools.partial(jax.jit, static_argnames=("model", "algorithm", "gradient_clip"))
def _step(
    model: Model,
    algorithm: ClientAlgorithm,
    server: Broadcast,
    local: LocalState,
    *,
    sums: TrainingSums,
    batch: Batch,
    learning_rate: float,
    gradient_clip: float | None,
) -> tuple[LocalState, TrainingSums]:
    local, step = algorithm_step(
        model, algorithm, server, local, batch=batch, learning_rate=learning_rate, gradient_clip=gradient_clip
    )
    return local, jax.tree_util.tree_map(jnp.add, sums, step)


def global_norm(tree: Params) -> jax.Array:
    """Compute the L2 norm over all leaves of a pytree, a float32 scalar."""
    leaves = jax.tree_util.tree_leaves(tree)
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves))


def gather_batch(sequences: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fetch the examples of one or more local steps.

    Args:
      sequences: int32 [examples, length + 1].
      rows: int [..., batch_size] of `batch_rows`; -1 gives a row of PAD with weight 0.

    Returns:
      tokens int32 [..., batch_size, length + 1] and weight float32 [..., batch_size].
    """
    real = rows >= 0
    tokens = np.where(real[..., None], sequences[np.maximum(rows, 0)], PAD_ID)
    return tokens.astype(np.int32), real.astype(np.float32)
