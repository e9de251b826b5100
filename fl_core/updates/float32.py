"""Updates as they are: four bytes a value."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.updates.compressors import Buffer, Cut, Scheme, Shape, sum_of_squares


@dataclass(frozen=True)
class Float32Upload:
    """No compression; a `fedlm.fl_core.updates.compressors.Compressor` that uses no key."""

    scheme = Scheme(1, 1, {})
    cut = Cut(0, 32)

    def keys(self, key: jax.Array) -> jax.Array:
        return key

    def compress(self, keys: jax.Array, values: jax.Array) -> jax.Array:
        return values.reshape(-1)

    def decompress(self, keys: jax.Array, compressed: jax.Array, shape: Shape) -> jax.Array:
        return jnp.asarray(compressed).reshape(shape)

    def pieces(self, compressed: jax.Array) -> list[jax.Array]:
        return [compressed]

    def unpack(self, packed: jax.Array, shape: Shape) -> jax.Array:
        return jax.lax.bitcast_convert_type(packed.reshape(-1, 4), jnp.float32)

    def is_finite(self, packed: Buffer) -> bool:
        return bool(np.isfinite(np.frombuffer(packed, "<f4")).all())

    def squared_norm(self, keys: jax.Array, message: jax.Array, start: int, shape: Shape) -> jax.Array:
        def values(first: jax.Array | int, count: int) -> jax.Array:
            return self.unpack(jax.lax.dynamic_slice(message, (start + 4 * first,), (4 * count,)), (count,))

        return sum_of_squares(values, math.prod(shape))

    def packed_bytes(self, shape: Shape) -> int:
        return 4 * math.prod(shape)


FLOAT32 = {"float32": Float32Upload()}
