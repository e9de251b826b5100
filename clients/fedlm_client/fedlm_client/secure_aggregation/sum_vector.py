"""What a client adds to a secure sum of updates: its update on a grid, then what else is told of its training."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..distributed_noise.lattice import centred

SAFETY = 1 - 2.0**-12
"""Of the clip norm, that vectors are clipped to, so that no rounding in float32 makes one longer than the clip norm.
A sum of squares that are added one after another, up to 2^12 of them, is too small by at most 2^-12 of itself."""


class Told(NamedTuple):
    """What a sum says beside the update; no member's is seen by itself.

    Attributes:
      clipped: whether the update was longer than the clip norm.
      update_norm: before clipping.
      examples: that the client trains on.
      loss: summed over tokens and local steps.
      tokens: summed over local steps.
      gradient_norm: summed over local steps.
    """

    clipped: float
    update_norm: float
    examples: float
    loss: float
    tokens: float
    gradient_norm: float


class SumLayout(NamedTuple):
    """How numbers become integers, the same for all members.

    Attributes:
      clip_norm: of an update.
      step: of the grid.
      bounds: the most that one client adds to each number of `Told`; more counts as this.
    """

    clip_norm: float
    step: float
    bounds: Told

    @property
    def largest(self) -> int:
        """The largest size of a client's integers."""
        return math.floor(self.clip_norm / self.step)

    @property
    def units(self) -> list[float]:
        """What 1 stands for in each number of `Told`: powers of two."""
        return [2.0 ** math.ceil(math.log2(bound / self.largest)) for bound in self.bounds]

    def integers(self, update: NDArray[np.float32], told: Told) -> NDArray[np.signedinteger] | None:
        """Clip an update and round it toward zero.

        Args:
          update: float32 [d].
          told: of the client's training; `clipped` and `update_norm` are computed here.

        Returns:
          int32 [d + 6], or int64 where that is too small; None where a number is not finite, or so large that its
          square is not.
        """
        whole = update.astype(np.float64)
        norm = math.sqrt(float(np.dot(whole, whole)))
        if not all(map(math.isfinite, (norm, *told))):
            return None
        bound = self.clip_norm * SAFETY
        clipped = norm > bound
        if clipped:
            whole *= bound / norm
        numbers = told._replace(clipped=float(clipped), update_norm=norm)
        rest = [
            round(min(max(number, 0.0), most) / unit)
            for number, most, unit in zip(numbers, self.bounds, self.units, strict=True)
        ]
        kind = np.int32 if self.largest < 1 << 31 else np.int64
        return np.concatenate([np.trunc(whole / self.step), rest]).astype(kind)

    def read(self, residues: NDArray[np.unsignedinteger], bits: int) -> tuple[NDArray[np.float64], Told]:
        """Read a sum of such vectors, modulo 2^bits: the sum of updates, float64 [d], and of what was told."""
        whole, count = centred(residues, bits), len(self.bounds)
        told = [int(number) * unit for number, unit in zip(whole[-count:], self.units, strict=True)]
        return (whole[:-count] * self.step).astype(np.float64), Told(*told)
