"""What a client does with its text: plain SGD from the server's parameters over its own batches."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fl_core.errors import ConfigurationError
from models.base import Batch, Model, Params, batch_loss, weigh_examples
from models.special_tokens import PAD_ID


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains. The defaults are those of the published Stack Overflow task.

    Attributes:
      batch_size: examples per local step.
      epochs: passes over the client's examples.
      max_batches: at most so many local steps a round.
      gradient_clip: clip each local gradient to this global norm; None leaves gradients alone.
    """

    batch_size: int = 10
    epochs: int = 1
    max_batches: int = 120
    gradient_clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "max_batches"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ConfigurationError(f"gradient_clip is {self.gradient_clip}, but must be positive (or left out)")

    def count_steps(self, num_examples: npt.ArrayLike) -> np.ndarray:
        """Count the local steps that `batch_rows` gives to clients.

        Args:
          num_examples: int [clients], or one int.

        Returns:
          int [clients], or one int.
        """
        per_epoch = -(-np.asarray(num_examples) // self.batch_size)
        return np.minimum(per_epoch * self.epochs, self.max_batches)


class LossSums(NamedTuple):
    """Training loss in the making, both float32 scalars.

    Attributes:
      loss: cross-entropy in nats, summed over non-PAD targets.
      tokens: number of those targets.
    """

    loss: jax.Array
    tokens: jax.Array


def batch_rows(num_examples: int, training: LocalTraining, rng: np.random.Generator) -> np.ndarray:
    """Choose which examples make up each local step.

    Every epoch shuffles the examples anew and cuts them into batches; its last batch may be partly
    filled. The cap on batches is applied last, so it keeps whole batches of the shuffled examples.

    Args:
      num_examples: how many examples the client has.
      training: batch size, epochs and cap.
      rng: the client's shuffling stream of this round.

    Returns:
      int64 [steps, batch_size]: rows of the client's examples, -1 where a batch is not filled.
    """
    per_epoch = -(-num_examples // training.batch_size)
    epochs = []
    for _ in range(min(training.epochs, -(-training.max_batches // max(per_epoch, 1)))):
        rows = np.full(per_epoch * training.batch_size, -1)
        rows[:num_examples] = rng.permutation(num_examples)
        epochs.append(rows.reshape(per_epoch, training.batch_size))
    return np.concatenate(epochs)[: training.max_batches]


def local_step(
    model: Model, params: Params, batch: Batch, learning_rate: jax.typing.ArrayLike, gradient_clip: float | None
) -> tuple[Params, LossSums]:
    """Take one step of SGD.

    Args:
      model: the model.
      params: the client's parameters.
      batch: its examples; a batch without any leaves the parameters as they are.
      learning_rate: scalar.
      gradient_clip: largest global norm of the gradient, or None.

    Returns:
      The stepped parameters, and the loss sums of the batch before the step.
    """
    (_, sums), gradient = jax.value_and_grad(lambda p: batch_loss(model, p, batch), has_aux=True)(params)
    step_size = learning_rate
    if gradient_clip is not None:
        norm = global_norm(gradient)
        step_size = step_size * jnp.minimum(1.0, gradient_clip / jnp.maximum(norm, 1e-30))
    stepped = jax.tree_util.tree_map(lambda p, g: p - step_size * g, params, gradient)
    weighted = weigh_examples(sums, batch)
    return stepped, LossSums(loss=jnp.sum(weighted.loss), tokens=jnp.sum(weighted.tokens))


def global_norm(tree: Params) -> jax.Array:
    """Compute the L2 norm over all leaves of a pytree.

    Args:
      tree: float arrays.

    Returns:
      float32 scalar.
    """
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
