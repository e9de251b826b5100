"""Random rotation of a whole vector, which spreads what it holds evenly over its coordinates: `H diag(+-1) / sqrt(D)`,
H the Hadamard matrix. Who knows the public seed undoes it."""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray


def rotated(vector: NDArray[np.float64], seed: bytes) -> NDArray[np.float64]:
    """Rotate a vector, float64 [D], D a power of two."""
    return hadamard(vector * _signs(len(vector), seed))


def rotated_back(vector: NDArray[np.float64], seed: bytes) -> NDArray[np.float64]:
    """Undo `rotated`."""
    return hadamard(vector) * _signs(len(vector), seed)


def hadamard(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply float64 [D], D a power of two, by the Hadamard matrix over sqrt(D), which is its own inverse."""
    size, half = len(vector), 1
    done: NDArray[np.float64] = vector / math.sqrt(size)
    while half < size:
        pairs = done.reshape(-1, 2, half)
        first, second = pairs[:, 0], pairs[:, 1]
        done = np.stack([first + second, first - second], axis=1, dtype=np.float64).reshape(-1)
        half *= 2
    return done


def _signs(size: int, seed: bytes) -> NDArray[np.float64]:
    """+1 or -1 for each coordinate, by the bits of SHAKE-128 of the seed, lowest first."""
    stream = np.frombuffer(hashlib.shake_128(b"fedlm rotation" + seed).digest(-(-size // 8)), np.uint8)
    return 1.0 - 2.0 * np.unpackbits(stream, count=size, bitorder="little").astype(np.float64)
