"""Masks: streams of AES-256-CTR that are added to vectors of integers, and the bytes in which these travel."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

LEAST_BITS, MOST_BITS = 8, 32
"""Of a modulus, which is a power of two."""
BLOCK = 1 << 16
"""Words that are added at once, so that they stay in a processor's cache."""
_NO_TEXT = bytes(4 * BLOCK)

Words = NDArray[np.uint16] | NDArray[np.uint32]


def word(bits: int) -> np.dtype:
    """Give the type of a vector modulo 2^bits, and of a stream's words: little-endian, of 16 bits if these suffice."""
    return np.dtype("<u2" if bits <= 16 else "<u4")


def add_mask(vector: Words, key: bytes, sign: int) -> None:
    """Add a key's stream to a vector in place, or subtract it where `sign` is -1, modulo what its words hold.

    The stream begins anew for each call: a key is for one vector.
    """
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    stream = bytearray(min(BLOCK, len(vector)) * vector.itemsize + 16)
    operation = np.add if sign > 0 else np.subtract
    for start in range(0, len(vector), BLOCK):
        part = vector[start : start + BLOCK]
        encryptor.update_into(memoryview(_NO_TEXT)[: part.nbytes], stream)
        operation(part, np.frombuffer(stream, vector.dtype, len(part)), out=part)


def packed(vector: Words, bits: int) -> bytes:
    """Write the low bits of each word, one after another, the lowest first; the last byte is filled up with zeros."""
    parts = []
    for start in range(0, len(vector), BLOCK):
        words = np.ascontiguousarray(vector[start : start + BLOCK])
        digits = np.unpackbits(words.view(np.uint8).reshape(len(words), -1), axis=1, bitorder="little")
        parts.append(np.packbits(digits[:, :bits], bitorder="little").tobytes())
    return b"".join(parts)


def packed_size(length: int, bits: int) -> int:
    """Count the bytes of `packed`."""
    return (length * bits + 7) // 8


def unpacked(content: bytes, length: int, bits: int) -> Words:
    """Read what `packed` wrote: words below 2^bits, [length].

    Raises:
      ValueError: the content has another size, or ends in something else than zeros.
    """
    if len(content) != packed_size(length, bits):
        raise ValueError(f"{len(content)} bytes, but {length} values of {bits} bits are {packed_size(length, bits)}")
    vector = np.zeros(length, word(bits))
    raw, width = np.frombuffer(content, np.uint8), vector.itemsize * 8
    for start in range(0, length, BLOCK):
        count = min(BLOCK, length - start)
        part = raw[start * bits // 8 : packed_size(start + count, bits)]
        digits = np.unpackbits(part, bitorder="little")
        if digits[count * bits :].any():
            raise ValueError("the last byte has bits behind the last value")
        wide = np.zeros((count, width), np.uint8)
        wide[:, :bits] = digits[: count * bits].reshape(count, bits)
        vector[start : start + count] = np.packbits(wide, bitorder="little").view(vector.dtype)
    return vector
