"""How an update travels from client to server: the interface, float32 as it is, and the choice between ways.

Everything but packing into bytes is traceable by JAX, and a simulation runs the same arithmetic as a client. Numbers
travel with their low bytes first, as all machines that JAX runs on have them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.compression.quantization import UniformQuantization, sum_of_squares
from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.base import Params

Buffer = bytes | bytearray | memoryview
UploadBits = Literal[2, 4, 8, 16, 32]


class Compressor(Protocol):
    """Turns each tensor of an update into what travels, and back."""

    def compress(self, key: jax.Array, values: jax.Array) -> Any:
        """Compress a tensor on the client.

        Args:
          key: PRNG key of this tensor of this client in this round.
          values: float32 [size], finite.

        Returns:
          A pytree of arrays.
        """
        ...

    def decompress(self, key: jax.Array, compressed: Any, size: int) -> jax.Array:
        """Undo `compress` on the server, up to rounding.

        Args:
          key: the key that compressed.
          compressed: what `compress` returned.
          size: number of values.

        Returns:
          float32 [size].
        """
        ...

    def pack(self, compressed: Any) -> bytes:
        """Serialize what `compress` returned into `packed_bytes(size)` bytes."""
        ...

    def unpack(self, packed: jax.Array, size: int) -> Any:
        """Read what `pack` wrote, uint8 [packed_bytes(size)], for a tensor of `size` values; traceable by JAX."""
        ...

    def is_finite(self, packed: Buffer) -> bool:
        """Say whether all floats in what `pack` wrote are finite."""
        ...

    def squared_norm(self, key: jax.Array, message: jax.Array, start: int, size: int) -> jax.Array:
        """Compute the sum of a tensor's squares from its packed form, if possible without having its values in memory.

        Args:
          key: the key that compressed.
          message: uint8 [bytes].
          start: where in it lies what `pack` wrote.
          size: number of values.

        Returns:
          float32 scalar, the sum of squares of what `decompress` gives.
        """
        ...

    def packed_bytes(self, size: int) -> int:
        """Compute how many bytes a tensor of `size` values travels as."""
        ...


@dataclass(frozen=True)
class Float32Upload:
    """No compression: four bytes a value."""

    def compress(self, key: jax.Array, values: jax.Array) -> jax.Array:
        """See `Compressor.compress`; the key is not used."""
        return values

    def decompress(self, key: jax.Array, compressed: jax.Array, size: int) -> jax.Array:
        """See `Compressor.decompress`."""
        return jnp.asarray(compressed)

    def pack(self, compressed: jax.Array) -> bytes:
        """See `Compressor.pack`."""
        return np.asarray(compressed, "<f4").tobytes()

    def unpack(self, packed: jax.Array, size: int) -> jax.Array:
        """See `Compressor.unpack`."""
        return jax.lax.bitcast_convert_type(packed.reshape(size, 4), jnp.float32)

    def is_finite(self, packed: Buffer) -> bool:
        """See `Compressor.is_finite`."""
        return bool(np.isfinite(np.frombuffer(packed, "<f4")).all())

    def squared_norm(self, key: jax.Array, message: jax.Array, start: int, size: int) -> jax.Array:
        """See `Compressor.squared_norm`; the key is not used."""

        def values(first: jax.Array | int, count: int) -> jax.Array:
            return self.unpack(jax.lax.dynamic_slice(message, (start + 4 * first,), (4 * count,)), count)

        return sum_of_squares(values, size)

    def packed_bytes(self, size: int) -> int:
        """See `Compressor.packed_bytes`."""
        return 4 * size


COMPRESSORS: dict[int, Callable[[bool], Compressor]] = {
    2: partial(UniformQuantization, 2),
    4: partial(UniformQuantization, 4),
    8: partial(UniformQuantization, 8),
    16: partial(UniformQuantization, 16),
    32: lambda rotation: Float32Upload(),
}
"""From bits a value, and whether to rotate, to the compressor."""


def make_compressor(upload_bits: int, rotation: bool = False) -> Compressor:
    """Choose how updates travel.

    Args:
      upload_bits: bits a value: 2, 4, 8 or 16, or 32 for float32 as it is.
      rotation: random rotation before quantizing; not with 32 bits.

    Returns:
      The compressor.

    Raises:
      ConfigurationError: another width, or rotation of float32 uploads.
    """
    if upload_bits not in COMPRESSORS:
        raise ConfigurationError(f"upload_bits is {upload_bits}, but must be one of {', '.join(map(str, COMPRESSORS))}")
    if rotation and upload_bits == 32:
        raise ConfigurationError("upload_rotation is on, but 32-bit uploads are not quantized; choose fewer bits")
    return COMPRESSORS[upload_bits](rotation)


def compress_update(compressor: Compressor, key: jax.Array, update: Params) -> list:
    """Compress every tensor of an update.

    Args:
      compressor: how.
      key: PRNG key of this client in this round.
      update: float32 arrays, all values finite.

    Returns:
      What travels of each leaf, in the order of `jax.tree_util.tree_leaves`.
    """
    leaves = jax.tree_util.tree_leaves(update)
    return [compressor.compress(jax.random.fold_in(key, index), leaf.reshape(-1)) for index, leaf in enumerate(leaves)]


def decompress_update(compressor: Compressor, key: jax.Array, compressed: list, like: Params) -> Params:
    """Undo `compress_update`, up to rounding.

    Args:
      compressor: how it was compressed.
      key: the key that compressed.
      compressed: what travelled of each leaf.
      like: arrays, or shapes, of the update's structure.

    Returns:
      float32 arrays of that structure.
    """
    leaves, structure = jax.tree_util.tree_flatten(like)
    restored = [
        compressor.decompress(jax.random.fold_in(key, index), tensor, leaf.size).reshape(leaf.shape)
        for index, (tensor, leaf) in enumerate(zip(compressed, leaves, strict=True))
    ]
    return jax.tree_util.tree_unflatten(structure, restored)
