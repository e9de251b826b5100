"""From an update to integers that may be added up by a server that sees nothing but their sum, and back.

A client clips its update, rotates it, scales it, rounds it to integers no longer than a bound, adds its share of the
noise, and reduces all modulo 2^b. The bound, which privacy rests on, is checked in integers.
"""

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .bounds import integer_sensitivity, padded, rounded_norm_squared
from .noise_tables import NoiseKind, NoiseTable, RandomBytes, noise_table
from .rotation import rotated, rotated_back

_ROUNDING = zlib.crc32(b"lattice")
_TRIES = 1000
"""Each keeps the bound with probability 0.39 at least."""


@dataclass(frozen=True)
class Lattice:
    """What all clients of a round and its server agree on.

    Attributes:
      coordinates: d, of an update.
      clip_norm: c, L2 norm that updates are scaled down to.
      scale: s, integers to one unit of an update.
      bits: b; sums are taken modulo 2^b.
      noise: kind of each client's noise.
      variance: of each client's noise in a coordinate, in integers.
    """

    coordinates: int
    clip_norm: float
    scale: float
    bits: int
    noise: NoiseKind
    variance: float

    @property
    def dimension(self) -> int:
        """D, coordinates of what is sent."""
        return padded(self.coordinates)

    @cached_property
    def most_squared(self) -> int:
        """The most that the squared norm of a client's integers may be."""
        return int(rounded_norm_squared(self.scale * self.clip_norm, self.dimension))

    @cached_property
    def table(self) -> NoiseTable:
        """From which noise is drawn."""
        return noise_table(self.noise, self.variance)

    def rounded(
        self, update: NDArray[np.floating], rotation: bytes, random: np.random.Generator
    ) -> NDArray[np.int64] | None:
        """Clip, rotate, scale and round an update; None where a value is not finite, or so large that its square is.

        Privacy does not rest on the generator.

        Args:
          update: floating point [d].
          rotation: public seed of the round.
          random: decides between the integers around a value, by how far it is from each.

        Returns:
          int64 [D], whose squared norm is `most_squared` at most.
        """
        vector = np.zeros(self.dimension)
        vector[: self.coordinates] = update
        with np.errstate(over="ignore", invalid="ignore"):
            norm = float(np.sqrt(np.dot(vector, vector)))
        if not np.isfinite(norm):
            return None
        vector *= self.scale * min(1.0, self.clip_norm / norm if norm else 1.0)
        whole = rotated(vector, rotation)
        floor = np.floor(whole)
        part = whole - floor
        for _ in range(_TRIES):
            integers = (floor + (random.random(len(part)) < part)).astype(np.int64)
            if int(np.dot(integers, integers)) <= self.most_squared:
                return integers
        integers = np.trunc(whole).astype(np.int64)
        assert int(np.dot(integers, integers)) <= self.most_squared, "rounded toward zero, no vector gets longer"
        return integers

    def drawn_noise(self, random_bytes: RandomBytes) -> NDArray[np.int64]:
        """Draw a client's share of the noise, int64 [D], from bytes that nobody else may know."""
        return self.table.draw(self.dimension, random_bytes)

    def reduced(self, integers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Reduce modulo 2^b: what a client masks and sends, and what sums of such are."""
        return (integers & ((1 << self.bits) - 1)).astype(np.uint32)

    def centred(self, residues: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Take residues for the integers from -2^(b-1) to below 2^(b-1) that they are of."""
        return centred(residues, self.bits)

    def restored(self, integers: NDArray[np.int64], rotation: bytes) -> NDArray[np.float64]:
        """Scale and rotate integers back: float64 [d], in units of an update."""
        return rotated_back(integers / self.scale, rotation)[: self.coordinates]

    def sensitivity(self) -> tuple[float, float]:
        """Bound the L1 and L2 norm of a client's integers."""
        return integer_sensitivity(self.scale * self.clip_norm, self.dimension)


def rotation_seed(seed: int, round_number: int) -> bytes:
    """Make the public seed of a round's rotation from the run's seed."""
    return f"{seed} {round_number}".encode()


def rounding_random(seed: int, round_number: int, client: int) -> np.random.Generator:
    """Make what decides how a client rounds: public, so that a simulation comes to the integers of a deployment."""
    return np.random.default_rng(np.random.SeedSequence([seed, _ROUNDING, round_number, client]))


def centred(residues: NDArray[np.unsignedinteger], bits: int) -> NDArray[np.int64]:
    """Take residues modulo 2^bits for the integers from -2^(bits-1) to below 2^(bits-1) that they are of."""
    half = 1 << (bits - 1)
    return ((residues.astype(np.int64) + half) & ((1 << bits) - 1)) - half
