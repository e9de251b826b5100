"""What a client adds to a secure sum with distributed noise: its update in integers, and its share of the noise."""

import math
import os
import typing

import numpy as np
from numpy.typing import NDArray

from .. import messages_pb2 as messages
from ..distributed_noise.bounds import LEAST_DEVIATION, MOST_LENGTH
from ..distributed_noise.lattice import Lattice, rounding_random
from ..distributed_noise.noise_tables import MOST_VARIANCE, NoiseKind, RandomBytes
from ..errors import UnsafeSumError
from .masks import LEAST_BITS, MOST_BITS


def told_lattice(told: messages.SecureSum, coordinates: int) -> Lattice:
    """Read what a server says of the integers of a round, for updates of so many numbers.

    Raises:
      UnsafeSumError: no client can compute so, or it would hide nothing.
    """
    noise, sizes = told.noise, (told.clip_norm, told.noise.scale, told.noise.variance)
    if noise.kind not in typing.get_args(NoiseKind):
        raise UnsafeSumError(f"the server asks for noise of the kind {noise.kind!r}, which this client does not know")
    if not all(math.isfinite(size) and size > 0 for size in sizes) or not LEAST_BITS <= noise.bits <= MOST_BITS:
        raise UnsafeSumError(f"the server says nonsense of its noise: sizes {sizes}, {noise.bits} bits")
    if told.clip_norm * noise.scale > MOST_LENGTH or not LEAST_DEVIATION**2 <= noise.variance <= MOST_VARIANCE:
        raise UnsafeSumError(
            f"the server asks for integers of length {told.clip_norm * noise.scale:g} and noise of variance "
            f"{noise.variance:g}, but this client takes up to {MOST_LENGTH:g}, and {LEAST_DEVIATION**2:g} to "
            f"{MOST_VARIANCE:g}"
        )
    kind = typing.cast(NoiseKind, noise.kind)
    return Lattice(coordinates, told.clip_norm, noise.scale, noise.bits, kind, noise.variance)


def noised_integers(
    lattice: Lattice,
    update: NDArray[np.floating],
    asked: messages.RoundConfiguration,
    random_bytes: RandomBytes = os.urandom,
) -> NDArray[np.int64]:
    """Make a client's integers, int64 [D]: of its update, or of zeros where that is not finite, with its noise.

    Args:
      lattice: of the round.
      update: floating point [d].
      asked: round, whose seed and numbers decide how values are rounded.
      random_bytes: other than the operating system's in tests alone.
    """
    rounding = rounding_random(asked.seed, asked.round_number, asked.client_index)
    integers = lattice.rounded(update, asked.secure_sum.noise.rotation, rounding)
    noise = lattice.drawn_noise(random_bytes)
    return noise if integers is None else integers + noise
