"""Dropout with a key for every example, so that what is dropped of one does not depend on the others.

Srivastava et al. 2014: in training each number is 0 with some probability, and divided by that of staying otherwise.
Batches carry the keys (`Batch.dropout`); where they have none, as in evaluation, nothing is dropped.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedlm.models.base import Model
from fedlm.models.errors import ConfigurationError, setting
from fedlm.models.pickling import made_by

Drop = Callable[[jax.Array, int], jax.Array]
"""Maps what comes out of a layer, float [batch, ...], and the number of the place in the model, no other's, to what is
left of it."""

_OF_MODELS = 1 << 16
"""Places of models come after those of adapters, which have the same keys."""


def drop_nothing(x: jax.Array, place: int) -> jax.Array:
    """Leave everything as it is; see `Drop`."""
    return x


def dropping(rate: float, keys: jax.Array) -> Drop:
    """Make a `Drop` of each row's key, uint32 [batch, 2]."""

    def drop(x: jax.Array, place: int) -> jax.Array:
        return x * kept(rate, keys, _OF_MODELS + place)(x.shape, x.dtype)

    return drop


def kept(rate: float, keys: jax.Array, place: int) -> Callable[[tuple[int, ...], Any], jax.Array]:
    """Make of each row's key, uint32 [batch, 2], what numbers of a shape [batch, ...] and a dtype are multiplied by: 0
    where they are dropped."""

    def factors(shape: tuple[int, ...], dtype: Any) -> jax.Array:
        def of_row(key: jax.Array) -> jax.Array:
            stream = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), place)
            # What jax.random.bernoulli comes to, without reading a float out of bits, which LiteRT cannot.
            words = jax.random.bits(stream, shape[1:], jnp.uint32) >> 9
            return words.astype(jnp.int32).astype(jnp.float32) * 2.0**-23 < 1 - rate

        return jnp.where(jax.vmap(of_row)(keys), 1 / (1 - rate), 0).astype(dtype)

    return factors


def check_dropout(rate: float) -> None:
    """Refuse, as a ConfigurationError, a share that cannot be dropped."""
    if not 0 <= rate < 1:
        raise ConfigurationError(f"{setting('dropout')} is {rate}, but must be at least 0 and below 1")


def with_dropout(model: Model, rate: float) -> Model:
    """Make a model drop this share of its activations wherever a batch has keys.

    Raises:
      ConfigurationError: the model has no dropout, and the rate is not 0.
    """
    if not rate:
        return model
    if model.with_dropout is None:
        raise ConfigurationError(
            f"{setting('dropout')} is {rate}, but the model {model.name!r} has none; leave it out, or take one that "
            "has: sasrec, dpformer, gru4rec or lstm4rec"
        )
    return made_by(model.with_dropout, rate)
