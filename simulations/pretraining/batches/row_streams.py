"""Random bits for the rows of a batch, of each row whatever else is in the batch."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_bits(key: np.uint64, rows: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
    """Draw uint64 [rows, number]: for each row a stream that depends on key and row only.

    The streams are SplitMix64's (Steele et al. 2014, "Fast splittable pseudorandom number generators"), which any
    position can be computed of; no generator of NumPy draws many short streams at once.
    """
    states = _mixed(_mixed(rows * _GOLDEN + key))[:, None]
    return _mixed(states + np.arange(1, number + 1, dtype=np.uint64) * _GOLDEN)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
