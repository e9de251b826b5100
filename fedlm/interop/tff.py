"""TensorFlow Federated: our models as `tff.learning.models.FunctionalModel`, our splits as `ClientData`.

Batches there are pairs: `Batch.tokens`, int32 [batch, length + 1], which the model reads, and its targets, int32
[batch, length]. Parameters are the tuple of the leaves of ours.
"""

import collections
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from jax.experimental import jax2tf

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.local_sgd import LocalTraining, batch_rows
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.interop.older_jax import supply_missing
from fedlm.models import losses
from fedlm.models.base import Batch, Model, Params
from fedlm.models.layers import linear_head
from fedlm.models.losses import ExampleSums
from fedlm.simulations.data.federated_data import Split

supply_missing()


def model_for_tff(model: Model, params: Params, length: int) -> tff.learning.models.FunctionalModel:
    """Make a `FunctionalModel` of a causal language model.

    Its predictions are each example's `ExampleSums`, float32 [batch, 7], so that its loss is ours, the mean over the
    target tokens of a batch, and its metrics are our scores. Nothing is dropped in training.

    Args:
      model: which must predict next tokens.
      params: where training begins.
      length: tokens that are read of an example.

    Raises:
      ConfigurationError: the model has another objective, or parameters that are not trained.
    """
    if model.objective != "causal" or model.with_frozen is not None:
        what = "has parameters that are not trained" if model.with_frozen is not None else f"is {model.objective}"
        raise ConfigurationError(f"model {model.name!r} {what}; TFF is given causal models that are trained whole")
    leaves, structure = jax.tree_util.tree_flatten(params)
    sums = _in_tensorflow(model, structure, len(leaves))

    @tf.function
    def predict(weights: Any, tokens: tf.Tensor, training: bool) -> tf.Tensor:
        return sums(*weights[0], tokens)

    def loss(output: tf.Tensor, label: tf.Tensor, sample_weight: Any = None) -> tf.Tensor:
        named = ExampleSums(*tf.unstack(output, axis=-1))
        return tf.reduce_sum(named.loss) / tf.maximum(tf.reduce_sum(named.tokens), 1.0)

    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(np.asarray(leaf) for leaf in leaves), ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        metrics_fns=(_no_sums, _add_sums, _scores),
        input_spec=(tf.TensorSpec([None, length + 1], tf.int32), tf.TensorSpec([None, length], tf.int32)),
    )


def params_from_tff(weights: tff.learning.models.ModelWeights, like: Params) -> Params:
    """Arrange a process's model weights as the parameters that its model began with."""
    structure = jax.tree_util.tree_structure(like)
    return jax.tree_util.tree_unflatten(structure, [np.asarray(leaf) for leaf in weights.trainable])


def _in_tensorflow(model: Model, structure: Any, leaves: int) -> Callable[..., tf.Tensor]:
    """Convert a model's sums, with their gradient: one conversion with both would lose the setting that keeps
    operations of XLA, which TFF's executor has not got, out of the gradient."""

    def sums(weights: tuple, tokens: jax.Array) -> jax.Array:
        with _convertible_losses():
            batch = Batch(tokens, jnp.ones(tokens.shape[0]))
            return jnp.stack(model.loss(jax.tree_util.tree_unflatten(structure, weights), batch), axis=-1)

    def pull_back(weights: tuple, tokens: jax.Array, gradient: jax.Array) -> tuple:
        return jax.vjp(lambda weights: sums(weights, tokens), weights)[1](gradient)[0]

    def converted(function: Callable, *polymorphic: str | None) -> Callable:
        return jax2tf.convert(
            function,
            polymorphic_shapes=[None, *polymorphic],
            with_gradient=False,
            native_serialization=False,
            enable_xla=False,
        )

    forward, backward = converted(sums, "b, _"), converted(pull_back, "b, _", "b, _")

    @tf.custom_gradient
    def joined(*given: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        weights, tokens = given[:leaves], given[leaves]

        def gradient(upstream: tf.Tensor) -> tuple:
            return (*backward(weights, tokens, upstream), None)

        return forward(weights, tokens), gradient

    return joined


@contextmanager
def _convertible_losses() -> Iterator[None]:
    """Score tokens as can be converted, while a model is traced: targets are picked by a masked sum, not a gather, and
    all logits are made at once, for how many there will be is not known."""

    def picked(logits: jax.Array, targets: jax.Array) -> jax.Array:
        is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
        return jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1).astype(jnp.float32)

    substitutes = (
        (losses, "target_logits", picked),
        (linear_head, "target_logits", picked),
        (linear_head, "needs_blocks", lambda *sizes: False),
    )
    before = [getattr(module, name) for module, name, _ in substitutes]
    try:
        for module, name, substitute in substitutes:
            setattr(module, name, substitute)
        yield
    finally:
        for (module, name, _), own in zip(substitutes, before, strict=True):
            setattr(module, name, own)


def _no_sums() -> "collections.OrderedDict[str, tf.Tensor]":
    return collections.OrderedDict((name, tf.zeros([])) for name in ExampleSums._fields)


def _add_sums(state: Any, labels: Any, batch_output: Any, sample_weight: Any = None) -> Any:
    columns = tf.unstack(tf.reduce_sum(batch_output.predictions, axis=0))
    return collections.OrderedDict(
        (name, state[name] + column) for name, column in zip(ExampleSums._fields, columns, strict=True)
    )


def _scores(state: Any) -> "collections.OrderedDict[str, tf.Tensor]":
    """Compute what `fedlm.fl_core.rounds.scores.scores_from_totals` does."""
    return collections.OrderedDict(
        loss=state["loss"] / state["tokens"],
        perplexity=tf.exp(state["scored_loss"] / state["scored_tokens"]),
        accuracy=state["scored_correct"] / state["scored_tokens"],
        in_vocabulary_accuracy=state["in_vocabulary_correct"] / state["in_vocabulary_tokens"],
    )


class SplitForTff(tff.simulation.datasets.ClientData):
    """A split of ours as TFF's data: pairs of tokens and targets, one example an element.

    `create_tf_dataset_for_client` reads a client when it is asked for. What runs within TFF's executor cannot read a
    store: `serializable_dataset_fn` puts all clients into its graph, and is for few; for many `fedlm data export tff`
    writes a file that TFF reads itself.
    """

    def __init__(self, split: Split, length: int) -> None:
        """Give examples of a split, which must have no prompts, cut or padded to so many tokens that are read."""
        if split.has_completions:
            raise ConfigurationError(
                "the split has prompts and completions, which TFF would not tell from each other; give data that was "
                "imported as texts"
            )
        self._split, self._length = split, length
        self._clients = {name: client for client, name in enumerate(split.client_ids) if split.num_examples[client]}
        self._in_graph: Any = None

    @property
    def client_ids(self) -> list[str]:
        return list(self._clients)

    @property
    def element_type_structure(self) -> Any:
        return tf.TensorSpec([self._length + 1], tf.int32), tf.TensorSpec([self._length], tf.int32)

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        if client_id not in self._clients:
            raise ValueError(f"there is no client {client_id!r} with examples in the split")
        return tf.data.Dataset.from_tensor_slices(self._pair(client_id))

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        if self._in_graph is None:
            pairs = {name: self._pair(name) for name in self._clients}
            self._in_graph = tff.simulation.datasets.TestClientData(pairs)
        return self._in_graph.serializable_dataset_fn

    def _pair(self, client_id: str) -> tuple[np.ndarray, np.ndarray]:
        tokens = self._split.sequences(self._clients[client_id], self._length)
        return tokens, tokens[:, 1:]


def planned_datasets(split: Split, length: int, training: LocalTraining, plan: RoundPlan) -> list[tf.data.Dataset]:
    """Make of a round's plan the clients' batches, the very ones that ours train on, for `next` of a process of TFF's.

    Raises:
      ConfigurationError: batches other than a client's last may be partly filled, which `Dataset.batch` does not make.
    """
    if training.epochs > 1 and not training.batches_across_epochs:
        raise ConfigurationError(
            f"epochs is {training.epochs}, each of which ends with a batch of its own; set batches_across_epochs"
        )
    return [_planned(split.sequences(client, length), training, plan, client) for client in map(int, plan.clients)]


def _planned(sequences: np.ndarray, training: LocalTraining, plan: RoundPlan, client: int) -> tf.data.Dataset:
    rows = batch_rows(len(sequences), training, plan.shuffling(client)).reshape(-1)
    tokens = np.asarray(sequences[rows[rows >= 0]], np.int32)
    return tf.data.Dataset.from_tensor_slices((tokens, tokens[:, 1:])).batch(training.batch_size)


class FedAdam(tff.learning.optimizers.Optimizer):
    """FedAdam as ours and optax's: epsilon is added to the root of the second moment after its bias is corrected.

    TFF's own `build_adam` adds it before, so that one epsilon there is another in each round here.
    """

    def __init__(self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self._rate, self._beta1, self._beta2, self._epsilon = learning_rate, beta1, beta2, epsilon

    def initialize(self, specs: Any) -> Any:
        zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
        return collections.OrderedDict(step=0, first=zeros, second=zeros)

    def next(self, state: Any, weights: Any, gradients: Any) -> Any:
        step = state["step"] + 1
        count = tf.cast(step, tf.float32)
        mix = tf.nest.map_structure
        first = mix(lambda m, g: self._beta1 * m + (1 - self._beta1) * g, state["first"], gradients)
        second = mix(lambda v, g: self._beta2 * v + (1 - self._beta2) * g * g, state["second"], gradients)
        of_first, of_second = 1 - tf.pow(self._beta1, count), 1 - tf.pow(self._beta2, count)

        def moved(weight: tf.Tensor, m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
            return weight - self._rate * (m / of_first) / (tf.sqrt(v / of_second) + self._epsilon)

        return collections.OrderedDict(step=step, first=first, second=second), mix(moved, weights, first, second)
