"""CIFG and SI-CIFG language models, and others that differ in how something is normalised."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.base import Decoder, Model, Params
from fedlm.models.layers.basic import embed, init_embedding
from fedlm.models.layers.linear_head import linear_head_model
from fedlm.models.layers.output_norms import OUTPUT_NORMS
from fedlm.models.layers.parameter_uses import Parameter
from fedlm.models.layers.recurrences.layer_norm_recurrence import (
    init_layer_norm_cifg_layer,
    layer_norm_cifg_layer,
    read_layer_norm_cifg,
)
from fedlm.models.layers.recurrences.recurrent import (
    CifgState,
    Gating,
    begin_cifg,
    cifg_layer,
    init_cifg_layer,
    read_cifg,
)
from fedlm.models.layers.scale_invariant import si_sigmoid, si_tanh
from fedlm.models.special_tokens import OWN, SpecialTokens


@dataclass(frozen=True)
class CifgConfig:
    """Sizes and parts of a CIFG language model.

    Attributes:
      vocabulary_size: number of token ids.
      embedding: e, the size of the embeddings and of the recurrent projection.
      hidden: h, the size of the cell.
      tied: whether the output layer uses the input embedding's table.
      unroll: time steps that the compiled loop takes at once; results are the same.
      recurrence: one of `RECURRENCES`.
      output_norm: applied to the output before tokens are scored. A scale-invariant recurrence wants `rms_norm`. Else
        the projection's scale would be the one that the model still feels, and the server's first steps, all in one
        direction, would drive it far too high. docs/architectures.md has the evidence.
      special_tokens: those of the vocabulary.
    """

    vocabulary_size: int = 4096
    embedding: int = 1024
    hidden: int = 2048
    tied: bool = True
    unroll: int = 1
    recurrence: Literal["standard", "scale_invariant", "layer_norm"] = "standard"
    output_norm: Literal["none", "unit_rms", "rms_norm"] = "none"
    special_tokens: SpecialTokens = OWN


class Recurrence(NamedTuple):
    """A recurrence with a projection to the embeddings' size.

    Attributes:
      init: maps (key, e, h) to its parameters.
      run: maps (parameters, float [batch, time, e], unroll) to h of the same shape.
      read: maps (parameters, state, float [batch, time, e], int32 counts [batch]) to the next state.
    """

    init: Callable[[jax.Array, int, int], Params]
    run: Callable[[Params, jax.Array, int], jax.Array]
    read: Callable[[Params, CifgState, jax.Array, jax.Array], CifgState]


def _activated_by(gating: Gating) -> Recurrence:
    """Make the CIFG recurrence with any activations: of the gates, and of the candidate and of the cell's output."""
    return Recurrence(
        init_cifg_layer,
        lambda params, x, unroll: cifg_layer(params, x, gating, unroll),
        lambda params, state, x, counts: read_cifg(params, state, x, counts, gating=gating),
    )


RECURRENCES = {
    "standard": _activated_by(Gating(jax.nn.sigmoid, jnp.tanh)),
    "scale_invariant": _activated_by(Gating(si_sigmoid, si_tanh)),
    "layer_norm": Recurrence(init_layer_norm_cifg_layer, layer_norm_cifg_layer, read_layer_norm_cifg),
}
"""By the name that a configuration has: sigmoid gates and a tanh cell; those of Ro et al. 2024; the first with layer
normalisation within (Ba et al. 2016)."""


def cifg(name: str, config: CifgConfig) -> Model:
    """Make a CIFG language model of its configuration's parts."""
    recurrence, output_norm = RECURRENCES[config.recurrence], OUTPUT_NORMS[config.output_norm]

    def init(rng: jax.Array) -> Params:
        rng_embedding, rng_recurrent, rng_output = jax.random.split(rng, 3)
        params = {
            "embedding": init_embedding(rng_embedding, config.vocabulary_size, config.embedding),
            "recurrent": recurrence.init(rng_recurrent, config.embedding, config.hidden),
            **output_norm.parameters("output_norm", config.embedding),
            "output_bias": jnp.zeros(config.vocabulary_size),
        }
        if not config.tied:
            params["output"] = init_embedding(rng_output, config.vocabulary_size, config.embedding)
        return params

    def inputs(params: Params, tokens: jax.Array) -> jax.Array:
        # Rows of unit norm times sqrt(e) have entries of unit size: small inputs would drown in the recurrence.
        return embed(params["embedding"], tokens) * config.embedding**0.5

    def normalised(params: Params, h: jax.Array) -> jax.Array:
        return output_norm.apply(params.get("output_norm"), h)

    def features(params: Params, tokens: jax.Array) -> jax.Array:
        return normalised(params, recurrence.run(params["recurrent"], inputs(params, tokens), config.unroll))

    def begin(params: Params, rows: int, length: int) -> CifgState:
        return begin_cifg(params["recurrent"], rows)

    def read(params: Params, state: CifgState, tokens: jax.Array, counts: jax.Array) -> tuple[jax.Array, CifgState]:
        state = recurrence.read(params["recurrent"], state, inputs(params, tokens), counts)
        return normalised(params, state.h), state

    def head(params: Params) -> tuple[Params, Parameter]:
        return params["embedding" if config.tied else "output"], params["output_bias"]

    return linear_head_model(
        name,
        config.vocabulary_size,
        init=init,
        features=features,
        head=head,
        special_tokens=config.special_tokens,
        decoder=Decoder(begin, read),
    )
