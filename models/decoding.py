"""Reading tokens bit by bit with any causal model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.base import Decoder, Model, Params
from fedlm.models.errors import ConfigurationError
from fedlm.models.special_tokens import PAD_ID


def decoder_of(model: Model) -> Decoder:
    """Return a model's decoder; of one without, one that reads everything again for every token.

    Raises:
      ConfigurationError: the model does not predict the next token.
    """
    if model.objective != "causal":
        raise ConfigurationError(
            f"model {model.name!r} has the {model.objective} objective and does not continue text; give a run of a "
            "causal model (`fedlm models` lists them)"
        )
    return model.decoder or recomputing_decoder(model)


class _Read(NamedTuple):
    tokens: jax.Array  # int32 [rows, length], PAD after those that were read
    lengths: jax.Array  # int32 [rows], how many were


def recomputing_decoder(model: Model) -> Decoder:
    """Make a decoder of a causal model's `apply`, which reads everything again for every token."""

    def begin(params: Params, rows: int, length: int) -> _Read:
        return _Read(jnp.full((rows, length), PAD_ID, jnp.int32), jnp.zeros(rows, jnp.int32))

    def read(params: Params, state: _Read, tokens: jax.Array, counts: jax.Array) -> tuple[jax.Array, _Read]:
        rows, places = jnp.arange(len(tokens)), jnp.arange(tokens.shape[1])
        beyond = state.tokens.shape[1]
        targets = jnp.where(places < counts[:, None], state.lengths[:, None] + places, beyond)
        read = _Read(state.tokens.at[rows[:, None], targets].set(tokens, mode="drop"), state.lengths + counts)
        return model.apply(params, read.tokens)[rows, jnp.maximum(read.lengths - 1, 0)], read

    return Decoder(begin, read)
