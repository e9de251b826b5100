"""The choices that are weighed against each other, each as a model that differs from ours in one thing.

Names are used as `--model benchmarks.architectures.variants:NAME`.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedlm.models.base import Model, Params
from fedlm.models.cifg import CifgConfig, cifg_with
from fedlm.models.layers import dense, embed
from fedlm.models.linear_head import linear_head_model
from fedlm.models.recurrent import cifg_layer
from fedlm.models.registry import MODELS, ModelEntry
from fedlm.models.scale_invariant import si_attention_weights, si_sigmoid, si_tanh, unit_rms
from fedlm.models.transformer import TransformerConfig, transformer_with

_CIFG = MODELS["cifg_tiny"].config
_TRANSFORMER = MODELS["transformer_tiny"].config
Recurrence = Callable[[Params, jax.Array], jax.Array]


def plain_si_cifg(name: str, config: CifgConfig) -> Model:
    """Make CIFG with scale-invariant activations and nothing else: SI-CIFG but for its normalised output."""
    return cifg_with(name, config, si_sigmoid, si_tanh)


def normalised_cifg(name: str, config: CifgConfig) -> Model:
    """Make CIFG with a normalised output, to tell what that alone does."""
    return cifg_with(name, config, jax.nn.sigmoid, jnp.tanh, output=unit_rms)


def scaled_output(scale: float) -> ModelEntry:
    """Make plain SI-CIFG whose output is multiplied by a constant."""
    return ModelEntry(
        lambda name, config: cifg_with(name, config, si_sigmoid, si_tanh, output=lambda h: scale * h), _CIFG
    )


def larger_gates(factor: float) -> ModelEntry:
    """Make plain SI-CIFG that starts from larger gate weights, to which a step of one size is a smaller turn."""

    def build(name: str, config: CifgConfig) -> Model:
        model = plain_si_cifg(name, config)

        def init(rng: jax.Array) -> Params:
            params = model.init(rng)
            layer = params["recurrent"]
            gates = {part: {**layer[part], "kernel": factor * layer[part]["kernel"]} for part in ("input", "recurrent")}
            return {**params, "recurrent": {**layer, **gates}}

        return dataclasses.replace(model, init=init)

    return ModelEntry(build, _CIFG)


def si_cifg_like(input_scale: float, recurrence: Recurrence, output: Callable[[jax.Array], jax.Array]) -> ModelEntry:
    """Make SI-CIFG with parts of its own.

    Args:
      input_scale: multiplies embeddings, whose rows have unit expected norm.
      recurrence: maps (parameters of the recurrent layer, inputs) to h.
      output: applied to h before tokens are scored.

    Returns:
      The variant.
    """

    def build(name: str, config: CifgConfig) -> Model:
        def features(params: Params, tokens: jax.Array) -> jax.Array:
            return output(recurrence(params["recurrent"], embed(params["embedding"], tokens) * input_scale))

        def head(params: Params) -> tuple[Params, jax.Array]:
            return params["embedding"], params["output_bias"]

        return linear_head_model(name, config.vocabulary_size, plain_si_cifg(name, config).init, features, head)

    return ModelEntry(build, _CIFG)


def si_recurrence(params: Params, x_bxtxe: jax.Array) -> jax.Array:
    """Run SI-CIFG's recurrence as it is."""
    return cifg_layer(params, x_bxtxe, si_sigmoid, si_tanh)


def normalised_recurrence(params: Params, x_bxtxe: jax.Array) -> jax.Array:
    """Run SI-CIFG's recurrence with h normalised at every step, not only where tokens are scored."""
    z_txbx3h = jnp.swapaxes(dense(params["input"], x_bxtxe), 0, 1)

    def step(state: tuple[jax.Array, jax.Array], z: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = state
        i, g, o = jnp.split(z + dense(params["recurrent"], h), 3, axis=-1)
        i = si_sigmoid(i)
        c = c + i * (si_tanh(g) - c)
        h = unit_rms(dense(params["projection"], si_sigmoid(o) * si_tanh(c)))
        return (h, c), h

    batch, hidden = x_bxtxe.shape[0], params["projection"]["kernel"].shape[0]
    start = (jnp.zeros((batch, x_bxtxe.shape[2])), jnp.zeros((batch, hidden)))
    return jnp.swapaxes(jax.lax.scan(step, start, z_txbx3h)[1], 0, 1)


def si_transformer_with_epsilon(epsilon: float) -> ModelEntry:
    """Make SI-Transformer whose rows of attention are divided by their sum and a constant."""

    def weights(scores: jax.Array, mask: jax.Array) -> jax.Array:
        positive = jax.nn.relu(jnp.where(mask, scores, 0.0))
        return positive / (jnp.sum(positive, axis=-1, keepdims=True) + epsilon)

    def build(name: str, config: TransformerConfig) -> Model:
        return transformer_with(name, config, weights)

    return ModelEntry(build, _TRANSFORMER)


def si_transformer_seeing_itself(name: str, config: TransformerConfig) -> Model:
    """Make SI-Transformer in which every row keeps a share of 1 for its own position, so that no row is empty."""

    def weights(scores: jax.Array, mask: jax.Array) -> jax.Array:
        return 0.5 * (si_attention_weights(scores, mask) + jnp.eye(scores.shape[-1], dtype=scores.dtype))

    return transformer_with(name, config, weights)


PLAIN = ModelEntry(plain_si_cifg, _CIFG)
SMALL_OUTPUT = scaled_output(1 / math.sqrt(_CIFG.embedding))
SMALLER_OUTPUT = scaled_output(1 / _CIFG.embedding)
LARGER_GATES = larger_gates(10.0)
UNIT_EMBEDDING = si_cifg_like(1.0, si_recurrence, lambda h: h)
NORMALISED_UNIT_EMBEDDING = si_cifg_like(1.0, si_recurrence, unit_rms)
NORMALISED_STATE = si_cifg_like(math.sqrt(_CIFG.embedding), normalised_recurrence, lambda h: h)
NORMALISED_CIFG = ModelEntry(normalised_cifg, _CIFG)
ATTENTION_EPSILON = si_transformer_with_epsilon(1e-2)
ATTENTION_WITH_SELF = ModelEntry(si_transformer_seeing_itself, _TRANSFORMER)
