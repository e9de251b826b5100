"""The shapes of what a model is trained on, and whether it can be."""

from typing import Any

import jax
import jax.numpy as jnp

from fedlm.models.base import Batch, Model, Params
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.masked_language import MaskedBatch


def check_length(name: str, model: Model, length: int) -> None:
    """Refuse, as a ConfigurationError, a length of sequences that a model cannot read."""
    if model.decoder is None:
        shapes_of_training(name, model, length)
    elif model.decoder.max_length is not None and length > model.decoder.max_length:
        raise _unreadable(name, length, f"it has positions for {model.decoder.max_length}")


def shapes_of_training(name: str, model: Model, length: int) -> tuple[Params, Any]:
    """Give the shapes of a model's parameters and of a batch of two sequences of some length.

    Raises:
      ConfigurationError: the model cannot read sequences of this length.
    """
    tokens = jax.ShapeDtypeStruct((2, length + (model.objective == "causal")), jnp.int32)
    weight = jax.ShapeDtypeStruct((2,), jnp.float32)
    batch: Any = Batch(tokens, weight) if model.objective == "causal" else MaskedBatch(tokens, tokens, weight)  # type: ignore[arg-type]
    params = jax.eval_shape(model.init, jax.random.key(0))
    try:
        jax.eval_shape(model.loss, params, batch)
    except ValueError as error:
        raise _unreadable(name, length, str(error).splitlines()[0]) from error
    return params, batch


def _unreadable(name: str, length: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"the model {name} cannot be used with length {length}: {why}")
