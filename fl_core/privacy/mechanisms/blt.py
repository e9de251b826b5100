"""Noise correlated by a buffered linear Toeplitz matrix (BLT; McMahan et al. 2024, "A hassle-free algorithm for strong
differential privacy in federated learning systems").

The coefficients are buffer decays and as many output scales. A few buffers are kept: `x_t = z_t - sum over i of scale_i
buffer_i`, and then `buffer_i <- decay_i buffer_i + x_t` (algorithm 3).
"""

import functools

import jax
import numpy as np

from fedlm.fl_core.privacy.mechanisms.interface import NoisePlan, NoSettings
from fedlm.fl_core.privacy.mechanisms.toeplitz import Buffers, ToeplitzMechanism, ToeplitzNoise
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, Participation
from fedlm.models.base import Params

_BUFFERS = 3
"""More made prefix sums of a thousand rounds no more exact; choosing them takes several seconds for each."""


class BltNoise(ToeplitzNoise):
    """Noise from a few buffers."""

    def __init__(self, coefficients: tuple[float, ...], first: int, end: int):
        half = len(coefficients) // 2
        super().__init__(half, first, end)
        self._decays, self._scales = coefficients[:half], coefficients[half:]

    def invert(self, drawn: Params, buffers: Buffers) -> tuple[Params, Buffers]:
        return _invert(self._decays, self._scales, drawn, buffers)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _invert(
    decays: tuple[float, ...], scales: tuple[float, ...], drawn: Params, buffers: Buffers
) -> tuple[Params, Buffers]:
    def invert(value: jax.Array, *before: jax.Array) -> jax.Array:
        for scale, buffer in zip(scales, before, strict=True):
            value = value - scale * buffer
        return value

    noise = jax.tree_util.tree_map(invert, drawn, *buffers)
    after = tuple(
        jax.tree_util.tree_map(lambda buffer, output, decay=decay: decay * buffer + output, kept, noise)
        for decay, kept in zip(decays, buffers, strict=True)
    )
    return noise, after


class Blt(ToeplitzMechanism):
    """The strategy of the least greatest squared error of prefix sums among those of a few buffers."""

    name = "blt"
    label = "BLT"
    summary = "correlated noise by a buffered linear Toeplitz matrix"
    help = "correlated noise by matrix factorization, with the least error"

    def coefficients(self, options: NoSettings, rounds: int, participation: Participation) -> tuple[float, ...]:
        return optimize(rounds, participation.bounded(rounds))

    def diagonal(self, coefficients: tuple[float, ...]) -> float:
        return 1.0

    def column(self, coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
        decays, scales = np.split(np.asarray(coefficients, np.float64), 2)
        powers = np.arange(rounds - 1)[:, None]
        return np.append(1.0, np.sum(scales * decays**powers, axis=1))

    def noise(self, plan: NoisePlan, first: int, end: int) -> BltNoise:
        return BltNoise(plan.coefficients, first, end)


@functools.lru_cache(maxsize=64)
def optimize(rounds: int, participation: BoundedParticipation) -> tuple[float, ...]:
    """Choose the coefficients, as float32 numbers."""
    from jax_privacy.matrix_factorization import buffered_toeplitz

    buffers = max(1, min(_BUFFERS, rounds - 1))
    with jax.enable_x64(True):
        found = buffered_toeplitz.optimize(
            n=rounds,
            min_sep=participation.min_separation,
            max_participations=participation.most(rounds),
            min_buffers=buffers,
            max_buffers=buffers,
        )
        values = np.concatenate([found.buf_decay, found.output_scale]).astype(np.float32)
    return tuple(map(float, values))


MECHANISM = Blt()
