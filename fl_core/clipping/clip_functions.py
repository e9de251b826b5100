"""From the norms of a unit's gradient to the factors that it is clipped with.

Under each of them the clipped gradient of a unit has an L2 norm of at most the clip norm, so that the sum changes by no
more when a unit is added or removed.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

ClipName = Literal["constant", "automatic", "per_layer"]
ClipFunction = Callable[[jax.Array, float], jax.Array]
"""Maps squared norms, float32 [arrays, units], and the clip norm to factors, float32 of a shape that broadcasts to
[arrays, units]."""

_SAFETY = 1 - 2.0**-15  # of the clip norm, so that no rounding in float32 makes a clipped gradient longer than it
STABILITY = 0.01
"""Gamma of automatic clipping (Bu et al. 2023)."""


def constant(squared_norms: jax.Array, clip_norm: float) -> jax.Array:
    """Scale gradients longer than the clip norm down to it (Abadi et al. 2016)."""
    return _at_most(jnp.sum(squared_norms, axis=0, keepdims=True), clip_norm)


def automatic(squared_norms: jax.Array, clip_norm: float) -> jax.Array:
    """Bring every gradient to about the clip norm: `C / (norm + gamma)` (Bu et al. 2023, "Automatic clipping")."""
    return clip_norm / (jnp.sqrt(jnp.sum(squared_norms, axis=0, keepdims=True)) + STABILITY)


def per_layer(squared_norms: jax.Array, clip_norm: float) -> jax.Array:
    """Clip the part of each parameter array alone, to an equal share of the clip norm (McMahan et al. 2018)."""
    return _at_most(squared_norms, clip_norm / len(squared_norms) ** 0.5)


def _at_most(squared_norms: jax.Array, bound: float) -> jax.Array:
    return jnp.minimum(1.0, bound / jnp.sqrt(jnp.maximum(squared_norms, jnp.finfo(jnp.float32).tiny)))


CLIP_FUNCTIONS: dict[str, ClipFunction] = {"constant": constant, "automatic": automatic, "per_layer": per_layer}


def clip_factors(name: ClipName, squared_norms: jax.Array, clip_norm: float) -> jax.Array:
    """Compute the factors, float32 [arrays, units], that gradients with squared norms [arrays, units] are clipped with.

    They are 0 for a unit whose gradient is not finite, or too long for float32 to say how long.
    """
    finite = jnp.isfinite(jnp.sum(squared_norms, axis=0))
    factors = CLIP_FUNCTIONS[name](jnp.where(finite, squared_norms, 0.0), clip_norm * _SAFETY)
    return jnp.where(finite, jnp.broadcast_to(factors, squared_norms.shape), 0.0)
