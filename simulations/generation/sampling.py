"""How the next token is chosen from logits: the most likely one, or one drawn at random."""

import math
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, Probability, Range, Seed


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen."""

    temperature: Annotated[float, Range(least=0, cap=math.inf)] = 0.0
    """Draw tokens with probabilities whose logits are divided by this. 0, the default, takes the most likely token each
    time; 1 draws as the model says."""
    top_k: Annotated[Count | None, OnlyWith("temperature")] = None
    """Draw only among this many of the most likely tokens."""
    top_p: Annotated[Probability | None, OnlyWith("temperature")] = None
    """Draw only among the fewest most likely tokens whose probabilities reach this sum (after --top-k, if both are
    given)."""
    seed: Annotated[Seed, OnlyWith("temperature")] = 0
    """Seed of the draws. What a prompt gets depends on it and on the prompt's number, not on other prompts."""

    def __post_init__(self) -> None:
        check_value_types(self)


def choose_tokens(logits: jax.Array, keys: jax.Array, sampling: Sampling) -> jax.Array:
    """Choose the next token of each row.

    Args:
      logits: float [rows, vocabulary].
      keys: PRNG keys [rows]; a row's token depends on its own only.
      sampling: how.

    Returns:
      int32 [rows]; of equally likely ones the most likely token is the first.
    """
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jax.vmap(jax.random.categorical)(keys, sampling_logits(logits, sampling)).astype(jnp.int32)


def sampling_logits(logits: jax.Array, sampling: Sampling) -> jax.Array:
    """Make the logits that tokens are drawn from at a temperature above 0.

    Args:
      logits: float [..., vocabulary].
      sampling: how.

    Returns:
      float32 of the same shape, -inf at tokens that are not drawn.
    """
    # Divided after the largest is taken off, a small temperature overflows to -inf, and the largest stays 0.
    wide = logits.astype(jnp.float32)
    limits = jnp.finfo(jnp.float32)
    temperature = min(max(sampling.temperature, float(limits.tiny)), float(limits.max))
    logits = (wide - jnp.max(wide, axis=-1, keepdims=True)) / temperature
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    return logits if sampling.top_p is None else keep_top_p(logits, sampling.top_p)


def keep_top_k(logits: jax.Array, k: int) -> jax.Array:
    """Set all but the k largest of float [..., vocabulary] to -inf; those that equal it stay (Fan et al. 2018)."""
    largest, _ = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    return jnp.where(logits >= largest[..., -1:], logits, -jnp.inf)


def keep_top_p(logits: jax.Array, p: float) -> jax.Array:
    """Set all of float [..., vocabulary] to -inf but the fewest most likely that have probability p together.

    The one that reaches p is among them, and those that are equally likely (Holtzman et al. 2020, nucleus sampling).
    """
    probabilities = jax.nn.softmax(logits, axis=-1)
    descending = -jnp.sort(-probabilities, axis=-1)
    before = jnp.cumsum(descending, axis=-1) - descending
    # What float32 takes for 0 is reached by the first one too.
    least_probability = max(p, float(jnp.finfo(jnp.float32).tiny))
    least = jnp.min(jnp.where(before < least_probability, descending, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(probabilities >= least, logits, -jnp.inf)
