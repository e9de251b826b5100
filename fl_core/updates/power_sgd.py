"""PowerSGD: each matrix of an update travels as two thin factors.

Source: Vogels et al. 2019, "PowerSGD: practical low-rank gradient compression for distributed optimization", algorithm
1 with one power iteration. For a matrix M of n rows and m columns, and Q m x r with normally distributed entries, P is
an orthonormal basis of the columns of M Q; what travels are P and M^T P, and the server takes P P^T M for M. A tensor
of more than two axes is a matrix of its first axis by all others. A tensor that this makes no smaller, as a vector,
travels as float32.

The paper keeps what was lost in the memory of each worker and adds it to its next update (error feedback), and begins
from the last round's factors. A device here takes part now and then and keeps nothing between rounds, so both are left
out: the update that arrives is a projection of the one that was made, never longer, and biased towards its leading
directions. Averaging over clients does not take the bias away, only a higher rank does.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.updates.compressors import Buffer, Compressor, Scheme, Shape

_EXACTLY = jax.lax.Precision.HIGHEST


class Factors(NamedTuple):
    """A matrix as it travels: float32 `basis` [rows, rank] times the transpose of `coefficients` [columns, rank]."""

    basis: jax.Array
    coefficients: jax.Array


@dataclass(frozen=True)
class PowerSgd:
    """Factors of one rank; a `fedlm.fl_core.updates.compressors.Compressor` whose server needs no key."""

    rank: int
    cut = None

    @property
    def scheme(self) -> Scheme:
        return Scheme(3, 1, {"rank": self.rank})

    def keys(self, key: jax.Array) -> jax.Array:
        return key

    def compress(self, keys: jax.Array, values: jax.Array) -> Factors | jax.Array:
        if not self._factored(values.shape):
            return values.reshape(-1)
        matrix = values.reshape(values.shape[0], -1)
        start = jax.random.normal(keys, (matrix.shape[1], self.rank))
        basis, _ = jnp.linalg.qr(jnp.matmul(matrix, start, precision=_EXACTLY))
        return Factors(basis, jnp.matmul(matrix.T, basis, precision=_EXACTLY))

    def decompress(self, keys: jax.Array, compressed: Factors | jax.Array, shape: Shape) -> jax.Array:
        if isinstance(compressed, Factors):
            return jnp.matmul(compressed.basis, compressed.coefficients.T, precision=_EXACTLY).reshape(shape)
        return jnp.asarray(compressed).reshape(shape)

    def pieces(self, compressed: Factors | jax.Array) -> list[jax.Array]:
        return jax.tree_util.tree_leaves(compressed)

    def unpack(self, packed: jax.Array, shape: Shape) -> Factors | jax.Array:
        values = jax.lax.bitcast_convert_type(packed.reshape(-1, 4), jnp.float32)
        if not self._factored(shape):
            return values
        basis, coefficients = jnp.split(values, [shape[0] * self.rank])
        return Factors(basis.reshape(-1, self.rank), coefficients.reshape(-1, self.rank))

    def is_finite(self, packed: Buffer) -> bool:
        return bool(np.isfinite(np.frombuffer(packed, "<f4")).all())

    def squared_norm(self, keys: jax.Array, message: jax.Array, start: int, shape: Shape) -> jax.Array:
        # Products of the factors' Gram matrices would be cheaper, but a client can choose factors whose terms cancel,
        # and a norm that is too small would be clipped too little.
        packed = message[start : start + self.packed_bytes(shape)]
        return jnp.sum(jnp.square(self.decompress(keys, self.unpack(packed, shape), shape)))

    def packed_bytes(self, shape: Shape) -> int:
        return 4 * (self._factor_values(shape) if self._factored(shape) else math.prod(shape))

    def _factored(self, shape: Shape) -> bool:
        return len(shape) > 1 and self._factor_values(shape) < math.prod(shape)

    def _factor_values(self, shape: Shape) -> int:
        return self.rank * (shape[0] + math.prod(shape[1:]))


POWER_SGD: dict[str, Compressor] = {f"powersgd{rank}": PowerSgd(rank) for rank in (1, 2, 4, 8, 16, 32)}
