"""Standard normal noise that is a function of (secret seed, what it is for), so that it can be made again, but not
twice differently.

A draw is named by a few integers. HMAC-SHA256 of the name, keyed by a secret of 256 bits, is the key of ChaCha20; the
number of the parameter leaf is its nonce, and each block of the key stream gives four normal numbers. All is float64.
"""

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.privacy.chacha20 import KEY_BYTES, WORDS, chacha20_blocks
from fedlm.models.base import Params

Name = tuple[int, ...]
"""Integers that name one draw of noise."""

Draw = Callable[[Sequence[tuple[float, Name]]], Params]
"""From (coefficient, name) pairs to the sum of coefficient times the named draw."""

SECRET_BYTES = KEY_BYTES
NOISE_FORMAT = "ChaCha20, float64, rounded to a grid"
"""How noise follows from its secret: a run goes on only with the noise that it began with."""
_AT_ONCE = 64
_NORMALS = 4
"""Of a block."""
_BLOCKS_ON_CPU, _BLOCKS = 1 << 14, 1 << 20
"""That are made at once: as many as a core's cache holds, or as fill an accelerator. No bit depends on it."""


def fresh_secret() -> bytes:
    """Take a seed for noise, which nobody else has ever seen, from the operating system's entropy."""
    return secrets.token_bytes(SECRET_BYTES)


def noise_from(secret: bytes, like: Params, shardings: Params | None = None) -> Draw:
    """Make the noise of a secret: float64, of the structure and shapes of `like`, and spread by `shardings`.

    The function that draws may be given a name again, and gives the same noise.
    """
    leaves, structure = jax.tree_util.tree_flatten(like)
    shapes = tuple(tuple(leaf.shape) for leaf in leaves)
    spread = None if shardings is None else tuple(jax.tree_util.tree_leaves(shardings))
    combine = jax.jit(_combine, static_argnums=0, out_shardings=spread)

    def draw(terms: Sequence[tuple[float, Name]]) -> Params:
        with jax.enable_x64(True):
            total = None
            for start in range(0, len(terms), _AT_ONCE):
                part = terms[start : start + _AT_ONCE]
                keys = np.zeros((_AT_ONCE, KEY_BYTES // 4), np.uint32)
                coefficients = np.zeros(_AT_ONCE)
                for place, (coefficient, name) in enumerate(part):
                    keys[place], coefficients[place] = noise_key(secret, name), coefficient
                drawn = combine(shapes, keys, coefficients, len(part))
                total = drawn if total is None else tuple(map(jnp.add, total, drawn))
            if total is None:
                total = tuple(jnp.zeros(shape, jnp.float64) for shape in shapes)
            return jax.tree_util.tree_unflatten(structure, total)

    return draw


def commitment(secret: bytes) -> str:
    """Compute what tells that a secret is the same without giving it away: a SHA-256 in hex."""
    return hashlib.sha256(b"commitment" + secret).hexdigest()


def noise_key(secret: bytes, name: Name) -> np.ndarray:
    """Make the key of one draw: uint32 [8], the words of a key of ChaCha20."""
    message = b"noise" + b"".join(int(part).to_bytes(8, "little", signed=True) for part in name)
    return np.frombuffer(hmac.digest(secret, message, "sha256"), "<u4")


def standard_normals(key: jax.Array, number: int, shape: tuple[int, ...]) -> jax.Array:
    """Draw the normal numbers of one leaf; to be traced where JAX's 64-bit types are enabled.

    Args:
      key: uint32 [8], of `noise_key`.
      number: of the leaf.
      shape: of the leaf.

    Returns:
      float64 of the shape.
    """
    blocks = max(1, -(-math.prod(shape) // _NORMALS))
    at_once = min(blocks, _BLOCKS_ON_CPU if jax.default_backend() == "cpu" else _BLOCKS)
    nonce = jnp.asarray([number, 0, 0], jnp.uint32)

    def drawn(first: jax.Array) -> jax.Array:
        words = chacha20_blocks(key, nonce, first + jnp.arange(at_once, dtype=jnp.uint32))
        half = WORDS // 2
        return jnp.stack([*normal_pair(*words[:half]), *normal_pair(*words[half:])], axis=-1)

    firsts = at_once * jnp.arange(-(-blocks // at_once), dtype=jnp.uint32)
    return jax.lax.map(drawn, firsts).reshape(-1)[: math.prod(shape)].reshape(shape)


def normal_pair(*words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Turn random bits into two independent standard normal numbers (Box and Muller 1958).

    Half the squared radius is exponentially distributed, which has no memory: ln 2 for each leading zero of 128 bits,
    and what 64 other bits say beyond them. So both ends have float64's precision, and numbers reach 13.3 standard
    deviations. Beyond that the distribution is cut where all 128 bits are zero, so even 2^60 pairs are within
    2^-68 = 3.4e-21 of uncut ones in total variation; the smallest delta that is accepted is 1e-15.

    Args:
      *words: eight of uint32 [...]: four whose leading zeros count, two below those, two for the angle.

    Returns:
      float64 [...] each.
    """
    zeros = jnp.zeros(words[0].shape, jnp.int32)
    for word in reversed(words[:4]):
        zeros = jax.lax.clz(word).astype(jnp.int32) + jnp.where(word == 0, zeros, 0)
    squared = 2 * (zeros * math.log(2) - jnp.log1p(-_uniform(*words[4:6]) / 2))
    radius, angle = jnp.sqrt(squared), 2 * math.pi * _uniform(*words[6:])
    return radius * jnp.cos(angle), radius * jnp.sin(angle)


def _uniform(high: jax.Array, low: jax.Array) -> jax.Array:
    return high.astype(jnp.float64) * 2.0**-32 + low.astype(jnp.float64) * 2.0**-64


def _combine(
    shapes: tuple[tuple[int, ...], ...], keys: jax.Array, coefficients: jax.Array, count: jax.Array
) -> tuple[jax.Array, ...]:
    def drawn(place: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            coefficients[place] * standard_normals(keys[place], number, shape) for number, shape in enumerate(shapes)
        )

    def add(place: jax.Array, total: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(map(jnp.add, total, drawn(place)))

    return jax.lax.fori_loop(1, count, add, drawn(jnp.zeros((), int)))
