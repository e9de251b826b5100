"""The choices that are weighed against each other, each as a model that differs from ours in one thing.

Names are used as `--model benchmarks.architectures.variants:NAME`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from fedlm.models.base import Model, Params
from fedlm.models.cifg import SCALE_INVARIANT, CifgConfig, cifg_with, si_cifg_published
from fedlm.models.layers import dense
from fedlm.models.output_norms import NO_NORM, UNIT_RMS, OutputNorm, without_parameters
from fedlm.models.registry import MODELS, ModelEntry
from fedlm.models.scale_invariant import si_attention_weights, si_sigmoid, si_tanh, unit_rms
from fedlm.models.transformer import (
    AttentionWeights,
    TransformerConfig,
    softmax_attention_weights,
    transformer_with,
)

_CIFG = MODELS["cifg_tiny"].config
_TRANSFORMER = MODELS["transformer_tiny"].config


def scaled_output(scale: float) -> ModelEntry:
    """Make plain SI-CIFG whose output is multiplied by a constant."""
    return ModelEntry(
        lambda name, config: cifg_with(name, config, SCALE_INVARIANT, without_parameters(lambda h: scale * h)), _CIFG
    )


def larger_gates(factor: float) -> ModelEntry:
    """Make plain SI-CIFG that starts from larger gate weights, to which a step of one size is a smaller turn."""

    def build(name: str, config: CifgConfig) -> Model:
        model = si_cifg_published(name, config)

        def init(rng: jax.Array) -> Params:
            params = model.init(rng)
            layer = params["recurrent"]
            gates = {part: {**layer[part], "kernel": factor * layer[part]["kernel"]} for part in ("input", "recurrent")}
            return {**params, "recurrent": {**layer, **gates}}

        return dataclasses.replace(model, init=init)

    return ModelEntry(build, _CIFG)


def smaller_inputs(output_norm: OutputNorm) -> ModelEntry:
    """Make SI-CIFG whose embeddings, rows of unit expected norm, are not multiplied by sqrt(e)."""

    def run(params: Params, x_bxtxe: jax.Array, unroll: int) -> jax.Array:
        return SCALE_INVARIANT.run(params, x_bxtxe / math.sqrt(x_bxtxe.shape[-1]), unroll)

    recurrence = SCALE_INVARIANT._replace(run=run)
    return ModelEntry(lambda name, config: cifg_with(name, config, recurrence, output_norm), _CIFG)


def normalised_recurrence(params: Params, x_bxtxe: jax.Array, unroll: int) -> jax.Array:
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
    return jnp.swapaxes(jax.lax.scan(step, start, z_txbx3h, unroll=unroll)[1], 0, 1)


def si_transformer_with_epsilon(epsilon: float) -> ModelEntry:
    """Make SI-Transformer whose rows of attention are divided by their sum and a constant."""

    def weights(scores: jax.Array, mask: jax.Array) -> jax.Array:
        positive = jax.nn.relu(jnp.where(mask, scores, 0.0))
        return positive / (jnp.sum(positive, axis=-1, keepdims=True) + epsilon)

    def build(name: str, config: TransformerConfig) -> Model:
        return transformer_with(name, config, weights)

    return ModelEntry(build, _TRANSFORMER)


def without_gain(attention_weights: AttentionWeights) -> ModelEntry:
    """Make a Transformer whose output is normalised and has no gain, as that of SI-CIFG."""
    return ModelEntry(lambda name, config: transformer_with(name, config, attention_weights, UNIT_RMS), _TRANSFORMER)


def si_transformer_seeing_itself(name: str, config: TransformerConfig) -> Model:
    """Make SI-Transformer in which every row keeps a share of 1 for its own position, so that no row is empty."""

    def weights(scores: jax.Array, mask: jax.Array) -> jax.Array:
        return 0.5 * (si_attention_weights(scores, mask) + jnp.eye(scores.shape[-1], dtype=scores.dtype))

    return transformer_with(name, config, weights)


SMALL_OUTPUT = scaled_output(1 / math.sqrt(_CIFG.embedding))
SMALLER_OUTPUT = scaled_output(1 / _CIFG.embedding)
LARGER_GATES = larger_gates(10.0)
UNIT_EMBEDDING = smaller_inputs(NO_NORM)
NORMALISED_UNIT_EMBEDDING = smaller_inputs(UNIT_RMS)
NORMALISED_STATE = ModelEntry(
    lambda name, config: cifg_with(name, config, SCALE_INVARIANT._replace(run=normalised_recurrence)), _CIFG
)
ATTENTION_EPSILON = si_transformer_with_epsilon(1e-2)
ATTENTION_WITH_SELF = ModelEntry(si_transformer_seeing_itself, _TRANSFORMER)
TRANSFORMER_WITHOUT_GAIN = without_gain(softmax_attention_weights)
SI_TRANSFORMER_WITHOUT_GAIN = without_gain(si_attention_weights)
