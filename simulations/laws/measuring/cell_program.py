"""Steps of a cell's training, compiled once for all cells of a model: a scan over the steps of a block.

Noise is pseudo-random and follows from the seed, and batches are no Poisson samples: what is trained is NOT PRIVATE.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedlm.fl_core.clipping.methods import Clipping, clipped_sum
from fedlm.fl_core.randomness import device_key
from fedlm.models.base import Batch, Model, Params
from fedlm.models.families.masked_language import MaskedBatch
from fedlm.models.precision import Precision, precision_scope

_BATCH_TYPES: dict[str, Any] = {"causal": Batch, "masked": MaskedBatch}


class CellState(NamedTuple):
    """What a step changes."""

    params: Params
    optimizer: optax.OptState


class StepNumbers(NamedTuple):
    """What is different in every step, and in every cell.

    Attributes:
      step: int32, how many steps were taken before.
      learning_rate: float32, of this step.
    """

    step: jax.Array
    learning_rate: jax.Array


class StepMeasures(NamedTuple):
    """What is known of a step.

    Attributes:
      losses: float32 [examples], in nats, of all predicted tokens of an example.
      tokens: float32 [examples], how many tokens were predicted.
      mean_squared_norm: float32, mean of the squared norms of the examples' gradients as they were added up: clipped,
        and in clip norms, where they are clipped.
      squared_norm_of_mean: float32, of their mean, before noise.
    """

    losses: jax.Array
    tokens: jax.Array
    mean_squared_norm: jax.Array
    squared_norm_of_mean: jax.Array


class CellProgram:
    """Trains the cells of one model and batch size. Learning rates, ratio and seed are arguments of compiled programs,
    so that no cell needs one of its own."""

    def __init__(
        self,
        model: Model,
        clipping: Clipping,
        unit: float,
        *,
        microbatch_size: int | None,
        precision: Precision,
        adam: tuple[float, float, float],
    ):
        """Compile nothing yet.

        Args:
          model: in the precision of the policy.
          clipping: of examples' gradients, whose function is `constant`. With a clip norm that none reaches they are
            only added up, in the same way, for what it tells of their norms.
          unit: what gradients are divided by, the clip norm where they are clipped.
          microbatch_size: examples at once, a divisor of the batch size; all where None.
          precision: a resolved policy.
          adam: beta1, beta2 and epsilon.
        """
        self._model, self._clipping, self._unit = model, clipping, unit
        self._microbatch_size, self._precision = microbatch_size, precision
        beta1, beta2, epsilon = adam
        self._adam = optax.scale_by_adam(beta1, beta2, epsilon)
        self._init = jax.jit(self._first_state)
        self._block = jax.jit(self._steps, donate_argnums=0)
        self._score = jax.jit(self._loss_sums)

    def first_state(self, seed: int) -> CellState:
        """Draw the state before the first step."""
        with precision_scope(self._precision):
            return self._init(device_key(seed, "parameters of a cell"))

    def run_block(
        self, state: CellState, fields: dict[str, Any], numbers: StepNumbers, *, noise_batch_ratio: float, seed: int
    ) -> tuple[CellState, StepMeasures]:
        """Take the steps of a block.

        Args:
          state: not to be used again.
          fields: of the model's batch but for the weight, int32 [steps, examples, ...].
          numbers: [steps].
          noise_batch_ratio: standard deviation of the noise on the mean gradient, in clip norms.
          seed: of the noise.

        Returns:
          The state after, and what was measured, [steps, ...].
        """
        with precision_scope(self._precision):
            key = device_key(seed, "noise of a cell")
            return self._block(state, fields, numbers, ratio=jnp.float32(noise_batch_ratio), key=key)

    def loss(self, params: Params, fields: dict[str, Any]) -> float:
        """Score examples, by their fields, int32 [examples, ...]. Returns nats per predicted token."""
        size, total, tokens = self._microbatch_size or 64, 0.0, 0.0
        examples = len(next(iter(fields.values())))
        with precision_scope(self._precision):
            for first in range(0, examples, size):
                rows = {name: array[first : first + size] for name, array in fields.items()}
                of_rows = jax.device_get(self._score(params, rows))
                total, tokens = total + float(of_rows[0]), tokens + float(of_rows[1])
        return total / tokens

    def _loss_sums(self, params: Params, fields: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        weight = jnp.ones(len(next(iter(fields.values()))))
        sums = self._model.loss(params, _BATCH_TYPES[self._model.objective](**fields, weight=weight))
        return jnp.sum(sums.loss), jnp.sum(sums.tokens)

    def _first_state(self, key: jax.Array) -> CellState:
        params = self._model.init(key)
        return CellState(params, self._adam.init(params))

    def _steps(
        self, state: CellState, fields: dict[str, jax.Array], numbers: StepNumbers, *, ratio: jax.Array, key: jax.Array
    ) -> tuple[CellState, StepMeasures]:
        def step(state: CellState, given: tuple[dict[str, jax.Array], StepNumbers]) -> tuple[CellState, StepMeasures]:
            batch, number = given
            mean, measures = self._mean_gradient(state.params, batch)
            mean = jax.lax.cond(ratio > 0, add_noise, lambda tree, *_: tree, mean, ratio, key, number.step)
            direction, optimizer = self._adam.update(mean, state.optimizer)
            params = jax.tree_util.tree_map(
                lambda leaf, update: leaf - number.learning_rate * update, state.params, direction
            )
            return CellState(params, optimizer), measures

        return jax.lax.scan(step, state, (fields, numbers))

    def _mean_gradient(self, params: Params, fields: dict[str, jax.Array]) -> tuple[Params, StepMeasures]:
        examples = len(next(iter(fields.values())))
        size = self._microbatch_size or examples
        if size == examples:
            total, losses, tokens, squared = self._summed(params, fields)
        else:
            parts = jax.tree_util.tree_map(lambda array: array.reshape(-1, size, *array.shape[1:]), fields)
            zero = jax.tree_util.tree_map(jnp.zeros_like, params)

            def add(total: Params, part: dict[str, jax.Array]) -> tuple[Params, Any]:
                more, *rest = self._summed(params, part)
                return jax.tree_util.tree_map(jnp.add, total, more), rest

            total, rest = jax.lax.scan(add, zero, parts)
            losses, tokens, squared = (array.reshape(-1) for array in rest)
        mean = jax.tree_util.tree_map(lambda leaf: leaf / (examples * self._unit), total)
        of_mean = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree_util.tree_leaves(mean))
        return mean, StepMeasures(losses, tokens, jnp.mean(squared), jnp.asarray(of_mean))

    def _summed(self, params: Params, fields: dict[str, jax.Array]) -> tuple[Params, jax.Array, jax.Array, jax.Array]:
        """Add up gradients. Returns the sum and, of each example, loss, tokens and squared norm after clipping."""
        examples = len(next(iter(fields.values())))
        batch = _BATCH_TYPES[self._model.objective](**fields, weight=jnp.ones(examples))
        found = clipped_sum(self._clipping, self._model, params, batch, units=examples)
        # One that is not finite is not added up.
        norms = jnp.where(found.factors[0] > 0, found.factors[0] * found.norms, 0.0) / self._unit
        return found.gradient, found.sums.loss, found.sums.tokens, jnp.square(norms)


def add_noise(tree: Params, deviation: jax.Array, key: jax.Array, step: jax.Array) -> Params:
    """Add Gaussian noise to every coordinate; it follows from the key and the step."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    keys = jax.random.split(jax.random.fold_in(key, step), len(leaves))
    noised = [leaf + deviation * jax.random.normal(one, leaf.shape) for leaf, one in zip(leaves, keys, strict=True)]
    return jax.tree_util.tree_unflatten(structure, noised)
