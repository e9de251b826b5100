"""Standard normal noise that is a function of (secret seed, what it is for), so that it can be made again, but not
twice differently.

A draw is named by a few integers. HMAC-SHA256 of the name, keyed by a secret of 256 bits, gives the 64-bit key of
JAX's Threefry generator, and the number of the parameter leaf is folded into that.
"""

import functools
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.models.base import Params

Name = tuple[int, ...]
"""Integers that name one draw of noise."""

Draw = Callable[[Sequence[tuple[float, Name]]], Params]
"""From (coefficient, name) pairs to the sum of coefficient times the named draw."""

SECRET_BYTES = 32
_AT_ONCE = 64


def fresh_secret() -> bytes:
    """Take a seed for noise, which nobody else has ever seen, from the operating system's entropy."""
    return secrets.token_bytes(SECRET_BYTES)


def noise_from(secret: bytes, like: Params) -> Draw:
    """Make the noise of a secret: float32, of the structure and shapes of `like`.

    The function that draws may be given a name again, and gives the same noise.
    """
    shapes = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), like)
    leaves, structure = jax.tree_util.tree_flatten(shapes)

    def draw(terms: Sequence[tuple[float, Name]]) -> Params:
        total = None
        for start in range(0, len(terms), _AT_ONCE):
            part = terms[start : start + _AT_ONCE]
            keys = np.zeros((_AT_ONCE, 2), np.uint32)
            coefficients = np.zeros(_AT_ONCE, np.float32)
            for place, (coefficient, name) in enumerate(part):
                keys[place], coefficients[place] = noise_key(secret, name), coefficient
            drawn = _combine(tuple(leaves), keys, coefficients, len(part))
            total = drawn if total is None else jax.tree_util.tree_map(jnp.add, total, drawn)
        if total is None:
            total = tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves)
        return jax.tree_util.tree_unflatten(structure, total)

    return draw


def commitment(secret: bytes) -> str:
    """Compute what tells that a secret is the same without giving it away: a SHA-256 in hex."""
    return hashlib.sha256(b"commitment" + secret).hexdigest()


def noise_key(secret: bytes, name: Name) -> np.ndarray:
    """Make the key of one draw: uint32 [2], the data of a Threefry key."""
    message = b"noise" + b"".join(int(part).to_bytes(8, "little", signed=True) for part in name)
    return np.frombuffer(hmac.digest(secret, message, "sha256")[:8], "<u4")


@functools.partial(jax.jit, static_argnums=0)
def _combine(
    leaves: tuple[jax.ShapeDtypeStruct, ...], keys: jax.Array, coefficients: jax.Array, count: jax.Array
) -> tuple[jax.Array, ...]:
    def drawn(place: jax.Array) -> tuple[jax.Array, ...]:
        key = jax.random.wrap_key_data(keys[place], impl="threefry2x32")
        return tuple(
            coefficients[place] * jax.random.normal(jax.random.fold_in(key, number), leaf.shape, leaf.dtype)
            for number, leaf in enumerate(leaves)
        )

    def add(place: jax.Array, total: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(map(jnp.add, total, drawn(place)))

    return jax.lax.fori_loop(1, count, add, drawn(jnp.zeros((), int)))
