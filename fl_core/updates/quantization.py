"""Stochastic uniform quantization of a tensor to 2, 4, 8 or 16 bits a value.

Source: Suresh et al. 2017, "Distributed mean estimation with limited communication". With
`step = (max - min) / (2^bits - 1)` a value x travels as `floor((x - min) / step + u)`, u uniform in [0, 1), so
that `min + code * step` is an unbiased estimate of x. Two floats a tensor travel beside the codes.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.updates.compressors import Buffer, Cut, Scheme, Shape, sum_of_squares
from fedlm.fl_core.updates.rotation import rotate, rotate_back, rotated_size


class QuantizedTensor(NamedTuple):
    """One tensor as it travels.

    Attributes:
      codes: uint8 (uint16 for 16 bits) [values], each below 2^bits; of a rotated tensor `rotated_size(size)` values.
      minimum: float32 scalar, the value of code 0.
      step: float32 scalar, the distance of neighbouring codes' values; 0 for a constant tensor.
    """

    codes: jax.Array
    minimum: jax.Array
    step: jax.Array


class QuantizationKeys(NamedTuple):
    """The keys of one tensor: that of its rounding, on the client, and that of its rotation, on both sides."""

    rounding: jax.Array
    rotation: jax.Array


@dataclass(frozen=True)
class UniformQuantization:
    """Codes of 2, 4, 8 or 16 bits, of a tensor that is rotated randomly first or not; a `Compressor`.

    One value that is not finite would poison a whole tensor.
    """

    bits: int = 8
    rotation: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8, 16):
            raise ConfigurationError(f"bits is {self.bits}, but must be 2, 4, 8 or 16")

    @property
    def scheme(self) -> Scheme:
        return Scheme(2, 1, {"bits": self.bits, "rotation": int(self.rotation)})

    @property
    def cut(self) -> Cut | None:
        return None if self.rotation else Cut(8, self.bits)

    def keys(self, key: jax.Array) -> QuantizationKeys:
        return QuantizationKeys(*jax.random.split(key))

    def compress(self, keys: QuantizationKeys, values: jax.Array) -> QuantizedTensor:
        values = values.reshape(-1)
        if self.rotation:
            values = rotate(keys.rotation, values)
        levels = 2**self.bits - 1
        minimum, maximum = jnp.min(values), jnp.max(values)
        step = (maximum - minimum) / levels
        position = (values - minimum) / jnp.where(step > 0, step, 1.0)
        codes = jnp.clip(jnp.floor(position + _uniform(keys.rounding, values.size)), 0, levels)
        return QuantizedTensor(codes.astype(jnp.uint16 if self.bits == 16 else jnp.uint8), minimum, step)

    def decompress(self, keys: QuantizationKeys, compressed: QuantizedTensor, shape: Shape) -> jax.Array:
        # No honest step is negative, so that the maximum changes no number, but it keeps product and sum from being one
        # operation that rounds once, in some programs and not in others. A client can choose numbers that are nothing
        # but that rounding, and what measures an update must see the very numbers that what adds it up sees.
        above = jnp.maximum(jnp.asarray(compressed.codes, jnp.float32) * compressed.step, 0.0)
        values = compressed.minimum + above
        return (rotate_back(keys.rotation, values, math.prod(shape)) if self.rotation else values).reshape(shape)

    def pieces(self, compressed: QuantizedTensor) -> list[jax.Array]:
        # The first code lies in the lowest bits of its byte.
        return [compressed.minimum, compressed.step, _pack_codes(compressed.codes, self.bits)]

    def unpack(self, packed: jax.Array, shape: Shape) -> QuantizedTensor:
        minimum, step = _unpack_floats(packed[:8])
        return QuantizedTensor(_unpack_codes(packed[8:], self.bits, self._num_codes(shape)), minimum, step)

    def is_finite(self, packed: Buffer) -> bool:
        return bool(np.isfinite(np.frombuffer(packed, "<f4", 2)).all())

    def squared_norm(self, keys: QuantizationKeys, message: jax.Array, start: int, shape: Shape) -> jax.Array:
        if self.rotation:
            packed = message[start : start + self.packed_bytes(shape)]
            return jnp.sum(jnp.square(self.decompress(keys, self.unpack(packed, shape), shape)))
        # Without the barrier the floats would be put together from their bytes once for each value.
        minimum, step = jax.lax.optimization_barrier(tuple(_unpack_floats(message[start : start + 8])))

        def values(first: jax.Array | int, count: int) -> jax.Array:
            place, length = start + 8 + first * self.bits // 8, -(-count * self.bits // 8)
            codes = _unpack_codes(jax.lax.dynamic_slice(message, (place,), (length,)), self.bits, count)
            return self.decompress(keys, QuantizedTensor(codes, minimum, step), (count,))

        return sum_of_squares(values, math.prod(shape))

    def packed_bytes(self, shape: Shape) -> int:
        return 8 + -(-self._num_codes(shape) * self.bits // 8)

    def _num_codes(self, shape: Shape) -> int:
        size = math.prod(shape)
        return rotated_size(size) if self.rotation else size


UNIFORM = {f"uniform{bits}": UniformQuantization(bits) for bits in (2, 4, 8, 16)}


def _unpack_floats(data: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(data.reshape(-1, 4), jnp.float32)


def _uniform(key: jax.Array, size: int) -> jax.Array:
    # 16 random bits a value: the offset by half a unit centres them, so the rounding is biased by at most 2^-17 of a
    # step. Rounding needs even and independent bits, not unpredictable ones: a keyed mix of the value's place (the
    # multipliers and shifts of Wellons 2018, "Prospecting for hash functions", triple32) costs a fifth of `jax.random`.
    low, high = jax.random.key_data(key).reshape(-1)[:2]
    word = jax.lax.iota(jnp.uint32, size) + low
    word = (word ^ (word >> 17)) * jnp.uint32(0xED5AD4BB) + high
    word = (word ^ (word >> 11)) * jnp.uint32(0xAC4C1B51)
    word = (word ^ (word >> 15)) * jnp.uint32(0x31848BAB)
    halves = (word ^ (word >> 14)) >> 16
    return (halves.astype(jnp.float32) + 0.5) * 2.0**-16


def _pack_codes(codes: jax.Array, bits: int) -> jax.Array:
    if bits >= 8:
        return codes
    per_byte = 8 // bits
    padded = jnp.pad(codes, (0, -codes.size % per_byte)).reshape(-1, per_byte)
    return jnp.sum(padded << (bits * jnp.arange(per_byte, dtype=jnp.uint8)), axis=1, dtype=jnp.uint8)


def _unpack_codes(data: jax.Array, bits: int, count: int) -> jax.Array:
    if bits == 8:
        return data
    if bits == 16:
        return jax.lax.bitcast_convert_type(data.reshape(count, 2), jnp.uint16)
    shifts = bits * jnp.arange(8 // bits, dtype=jnp.uint8)
    return ((data[:, None] >> shifts) & jnp.uint8(2**bits - 1)).reshape(-1)[:count]
