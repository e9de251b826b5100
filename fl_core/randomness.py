"""Named random streams, all derived from an experiment's one root seed.

A stream is a pure function of (root seed, purpose, indices): drawing from one never moves another, and a
resumed run draws what the uninterrupted one would have drawn.
"""

import hmac
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


def host_rng(seed: int | bytes, purpose: str, *indices: int) -> np.random.Generator:
    """Make the NumPy generator of a stream, at its start.

    Args:
      seed: the root seed, not negative; or a secret, of which HMAC-SHA256 makes each stream a Philox key of 128
        bits.
      purpose: what the numbers are for, such as `cohort`.
      *indices: what else tells this stream from its siblings, such as round and client; not negative.
    """
    if isinstance(seed, bytes):
        name = b"".join(index.to_bytes(8, "little") for index in (len(indices), *indices)) + purpose.encode()
        key = np.frombuffer(hmac.digest(seed, name, "sha256")[:16], "<u8")
        return np.random.Generator(np.random.Philox(key=key))
    return np.random.default_rng(np.random.SeedSequence([seed, _purpose_number(purpose), *indices]))


def device_key(seed: int | bytes, purpose: str, *indices: int) -> jax.Array:
    """Make the typed JAX key of a stream; arguments are those of `host_rng`."""
    if isinstance(seed, bytes):
        # JAX takes no more than 32 bits of a number.
        words = host_rng(seed, purpose, *indices).integers(1 << 32, size=2, dtype=np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    key = jax.random.fold_in(jax.random.key(seed), _purpose_number(purpose))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key


def _purpose_number(purpose: str) -> int:
    return zlib.crc32(purpose.encode())


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
