"""Masks: streams of AES-256-CTR that are added to vectors of integers, and the bytes in which these travel."""

from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

LEAST_BITS, MOST_BITS = 8, 32
"""Of a modulus, which is a power of two."""
BLOCK = 1 << 16
"""Words that are added at once, so that they stay in a processor's cache."""
_NO_TEXT = bytes(4 * BLOCK)
_CIPHER_BYTES = 16
_LANES, _WIDE = 8, 8

Words = NDArray[np.uint16] | NDArray[np.uint32]


def word(bits: int) -> np.dtype:
    """Give the type of a vector modulo 2^bits, and of a stream's words: little-endian, of 16 bits if these suffice."""
    return np.dtype("<u2" if bits <= 16 else "<u4")


def add_mask(vector: Words, key: bytes, sign: int, first: int = 0) -> None:
    """Add a key's stream to a vector in place, or subtract it where `sign` is -1, modulo what its words hold.

    The stream begins anew for each call: a key is for one vector, of which this may be a part. `first` is then the
    place of the part's first word in it, a multiple of BLOCK.
    """
    counter = first * vector.itemsize // _CIPHER_BYTES
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(counter.to_bytes(_CIPHER_BYTES, "big"))).encryptor()
    stream = bytearray(min(BLOCK, len(vector)) * vector.itemsize + _CIPHER_BYTES)
    operation = np.add if sign > 0 else np.subtract
    for start in range(0, len(vector), BLOCK):
        part = vector[start : start + BLOCK]
        encryptor.update_into(memoryview(_NO_TEXT)[: part.nbytes], stream)
        operation(part, np.frombuffer(stream, vector.dtype, len(part)), out=part)


def packed(vector: Words, bits: int) -> bytes:
    """Write the low bits of each word, one after another, the lowest first; the last byte is filled up with zeros."""
    if bits == 8 * vector.itemsize:
        return vector.tobytes()
    raw = bytearray(packed_size(len(vector), bits) + _WIDE)
    for start in range(0, len(vector), BLOCK):
        part = vector[start : start + BLOCK]
        for lane, places, shift in _lanes(raw, start, len(part), bits):
            np.bitwise_or(places, (part[lane::_LANES].astype("<u8") & _low(bits)) << shift, out=places)
    return bytes(memoryview(raw)[:-_WIDE])


def packed_size(length: int, bits: int) -> int:
    """Count the bytes of `packed`."""
    return (length * bits + 7) // 8


def unpacked(content: bytes, length: int, bits: int) -> Words:
    """Read what `packed` wrote: words below 2^bits, [length]; they may not be writable.

    Raises:
      ValueError: the content has another size, or ends in something else than zeros.
    """
    if len(content) != packed_size(length, bits):
        raise ValueError(f"{len(content)} bytes, but {length} values of {bits} bits are {packed_size(length, bits)}")
    if bits == 8 * word(bits).itemsize:
        return np.frombuffer(content, word(bits))
    if (over := length * bits % 8) and content[-1] >> over:
        raise ValueError("the last byte has bits behind the last value")
    vector, raw = np.empty(length, word(bits)), content + bytes(_WIDE)
    for start in range(0, length, BLOCK):
        part = vector[start : start + BLOCK]
        for lane, places, shift in _lanes(raw, start, len(part), bits):
            part[lane::_LANES] = (places >> shift) & _low(bits)
    return vector


def _lanes(raw: bytes | bytearray, start: int, count: int, bits: int) -> Iterator[tuple[int, NDArray, np.uint64]]:
    """View the bytes of values from `start` on as words that lie over every eighth value, and say how far to shift."""
    for lane in range(min(count, _LANES)):
        place, shift = divmod((start + lane) * bits, 8)
        # At 8 bits or more a value's word ends before that of the eighth after it begins.
        shape, strides = (len(range(lane, count, _LANES)),), (bits,)
        yield lane, np.ndarray(shape, "<u8", raw, offset=place, strides=strides), np.uint64(shift)


def _low(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)
