"""The stream cipher ChaCha20 (RFC 8439) as a source of random bits on any device: each block is a function of key,
nonce and counter alone, so that blocks are made in any order and as many at once as a device likes."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

KEY_BYTES = 32
WORDS = 16
"""32-bit words of a block."""
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def chacha20_blocks(
    key: jax.Array, nonce: Sequence[jax.typing.ArrayLike], counters: jax.Array
) -> tuple[jax.Array, ...]:
    """Make blocks of the key stream (RFC 8439, section 2.3).

    Args:
      key: uint32 [8], the key's bytes as little-endian words.
      nonce: three words, uint32 [] or [...] each.
      counters: uint32 [...], of which block.

    Returns:
      The 16 words of each block, uint32 [...] each.
    """
    words = [*_CONSTANTS, *key, counters, *nonce]
    start = tuple(jnp.broadcast_to(jnp.asarray(word, jnp.uint32), counters.shape) for word in words)
    return tuple(map(jnp.add, start, jax.lax.fori_loop(0, 10, _double_round, start)))


def _double_round(_: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    words = list(state)
    for quarter in (*_COLUMNS, *_DIAGONALS):
        a, b, c, d = (words[place] for place in quarter)
        a = a + b
        d = _rotated(d ^ a, 16)
        c = c + d
        b = _rotated(b ^ c, 12)
        a = a + b
        d = _rotated(d ^ a, 8)
        c = c + d
        b = _rotated(b ^ c, 7)
        for place, word in zip(quarter, (a, b, c, d), strict=True):
            words[place] = word
    return tuple(words)


def _rotated(word: jax.Array, bits: int) -> jax.Array:
    return (word << bits) | (word >> (32 - bits))
