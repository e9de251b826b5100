"""Random rotation of a tensor: random signs, then an orthonormal Hadamard matrix, block by block.

It evens out the values, which shortens the range that a quantizer must cover (Suresh et al. 2017, section 3).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

_BLOCK = 1024


def rotated_size(size: int) -> int:
    """Round a tensor's size up to whole blocks of 1,024, or to a power of two where it is smaller."""
    block = math.prod(_rotation_factors(size))
    return -(-size // block) * block


def rotate(key: jax.Array, values: jax.Array) -> jax.Array:
    """Rotate float32 [size] into float32 [rotated_size(size)] of the same L2 norm; the key draws the signs."""
    padded = jnp.pad(values, (0, rotated_size(values.size) - values.size))
    signs = jax.random.rademacher(key, padded.shape, jnp.float32)
    return _hadamard_blocks(padded * signs)


def rotate_back(key: jax.Array, rotated: jax.Array, size: int) -> jax.Array:
    """Undo `rotate` of `size` values by the same key."""
    signs = jax.random.rademacher(key, rotated.shape, jnp.float32)
    return (_hadamard_blocks(rotated) * signs)[:size]


def _rotation_factors(size: int) -> tuple[int, int]:
    block = min(_BLOCK, 1 << max(0, math.ceil(math.log2(size))))
    first = 1 << (block.bit_length() // 2)
    return first, block // first


def _hadamard(size: int) -> np.ndarray:
    matrix = np.ones((1, 1), np.float32)
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(math.sqrt(size))


def _hadamard_blocks(values: jax.Array) -> jax.Array:
    # The Hadamard matrix of a block is the Kronecker product of two small ones: two thin matrix products.
    factors = _rotation_factors(values.size)
    first, second = (_hadamard(size) for size in factors)
    rotated = jnp.einsum(
        "bij,ik,jl->bkl", values.reshape(-1, *factors), first, second, precision=jax.lax.Precision.HIGHEST
    )
    return rotated.reshape(-1)
