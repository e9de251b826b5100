"""CIFG and SI-CIFG language models."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedlm.models.base import Decoder, Model, Params
from fedlm.models.layers import embed, init_embedding
from fedlm.models.linear_head import linear_head_model
from fedlm.models.parameter_uses import Parameter
from fedlm.models.recurrent import Activation, CifgState, begin_cifg, cifg_layer, init_cifg_layer, read_cifg
from fedlm.models.scale_invariant import si_sigmoid, si_tanh, unit_rms
from fedlm.models.special_tokens import OWN, SpecialTokens


@dataclass(frozen=True)
class CifgConfig:
    """Sizes of a CIFG language model.

    Attributes:
      vocabulary_size: number of token ids.
      embedding: e, the size of the embeddings and of the recurrent projection.
      hidden: h, the size of the cell.
      tied: whether the output layer uses the input embedding's table.
      unroll: time steps that the compiled loop takes at once; results are the same.
      special_tokens: those of the vocabulary.
    """

    vocabulary_size: int = 4096
    embedding: int = 1024
    hidden: int = 2048
    tied: bool = True
    unroll: int = 1
    special_tokens: SpecialTokens = OWN


def cifg(name: str, config: CifgConfig) -> Model:
    """Make a CIFG language model (sigmoid gates, tanh cell)."""
    return cifg_with(name, config, jax.nn.sigmoid, jnp.tanh)


def si_cifg(name: str, config: CifgConfig) -> Model:
    """Make a scale-invariant CIFG language model (Ro et al. 2024).

    Its output is divided by its root mean square before tokens are scored. Else the projection's scale would be the
    one that the model still feels, and the server's first steps, all in one direction, would drive it far too high.
    benchmarks/architectures has the evidence.
    """
    return cifg_with(name, config, si_sigmoid, si_tanh, output=unit_rms)


def cifg_with(
    name: str, config: CifgConfig, gate: Activation, cell: Activation, output: Activation = lambda h: h
) -> Model:
    """Make a CIFG language model with any activations.

    Args:
      name: the model's name.
      config: its sizes.
      gate: activation of the gates.
      cell: activation of the candidate and of the cell's output.
      output: applied to h before tokens are scored; the recurrence takes h as it is.
    """

    def init(rng: jax.Array) -> Params:
        rng_embedding, rng_recurrent, rng_output = jax.random.split(rng, 3)
        params = {
            "embedding": init_embedding(rng_embedding, config.vocabulary_size, config.embedding),
            "recurrent": init_cifg_layer(rng_recurrent, config.embedding, config.hidden),
            "output_bias": jnp.zeros(config.vocabulary_size),
        }
        if not config.tied:
            params["output"] = init_embedding(rng_output, config.vocabulary_size, config.embedding)
        return params

    def inputs(params: Params, tokens: jax.Array) -> jax.Array:
        # Rows of unit norm times sqrt(e) have entries of unit size: small inputs would drown in the recurrence.
        return embed(params["embedding"], tokens) * config.embedding**0.5

    def features(params: Params, tokens: jax.Array) -> jax.Array:
        return output(cifg_layer(params["recurrent"], inputs(params, tokens), gate, cell, config.unroll))

    def begin(params: Params, rows: int, length: int) -> CifgState:
        return begin_cifg(params["recurrent"], rows)

    def read(params: Params, state: CifgState, tokens: jax.Array, counts: jax.Array) -> tuple[jax.Array, CifgState]:
        state = read_cifg(params["recurrent"], state, inputs(params, tokens), counts, gate, cell)
        return output(state.h), state

    def head(params: Params) -> tuple[Params, Parameter]:
        return params["embedding" if config.tied else "output"], params["output_bias"]

    return linear_head_model(
        name,
        config.vocabulary_size,
        init,
        features,
        head,
        special_tokens=config.special_tokens,
        decoder=Decoder(begin, read),
    )
