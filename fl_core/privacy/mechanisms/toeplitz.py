"""Correlated noise `C^-1 z` of a lower-triangular Toeplitz strategy C, banded or a buffered linear one (BLT).

A banded C is inverted by keeping the last outputs: `x_t = (z_t - sum over i of c_i x_(t-i)) / c_0` (Choquette-Choo et
al. 2023, algorithm 9). A BLT keeps a few buffers: `x_t = z_t - sum over i of scale_i buffer_i`, and then
`buffer_i <- decay_i buffer_i + x_t` (McMahan et al. 2024, algorithm 3).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.privacy.mechanisms.planned_rounds import check_horizon
from fedlm.fl_core.privacy.noise_source import Draw
from fedlm.fl_core.privacy.plan import PrivacyPlan
from fedlm.models.base import Params

Buffers = tuple[Params, ...]
"""float32 arrays of the sums' structure: as many as a BLT has buffers, or one less than there are bands."""


class ToeplitzState(NamedTuple):
    """Counter and buffers.

    Attributes:
      round: int64 scalar, the number of the next round.
      buffers: of a BLT, or the outputs of the last rounds, the newest first.
    """

    round: np.ndarray
    buffers: Buffers


class Toeplitz:
    """See `fedlm.fl_core.privacy.mechanisms.interface.NoiseMechanism`."""

    def __init__(self, plan: PrivacyPlan, first: int, end: int):
        self._first, self._end = first, end
        self._banded, self._coefficients = plan.mechanism == "banded", plan.coefficients

    def init(self, like: Params) -> ToeplitzState:
        """See `NoiseMechanism.init`."""
        count = len(self._coefficients) - 1 if self._banded else len(self._coefficients) // 2
        zeros = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), like)
        return ToeplitzState(np.asarray(self._first), (zeros,) * count)

    def next(self, state: ToeplitzState, draw: Draw) -> tuple[Params, ToeplitzState]:
        """See `NoiseMechanism.next`."""
        number = check_horizon(state.round, self._end)
        drawn = draw([(1.0, (self._first, number))])
        if self._banded:
            noise = _invert_banded(self._coefficients, drawn, state.buffers)
            buffers: Buffers = (noise, *state.buffers)[: len(state.buffers)]
        else:
            half = len(self._coefficients) // 2
            noise, buffers = _invert_blt(self._coefficients[:half], self._coefficients[half:], drawn, state.buffers)
        return noise, ToeplitzState(np.asarray(number + 1), buffers)

    def durable(self, state: ToeplitzState) -> ToeplitzState:
        """See `NoiseMechanism.durable`."""
        return state

    def restore(self, durable: ToeplitzState, like: Params, draw: Draw) -> ToeplitzState:
        """See `NoiseMechanism.restore`."""
        return ToeplitzState(durable[0], tuple(durable[1]))


@functools.partial(jax.jit, static_argnums=0)
def _invert_banded(coefficients: tuple[float, ...], drawn: Params, buffers: Buffers) -> Params:
    def invert(value: jax.Array, *before: jax.Array) -> jax.Array:
        for coefficient, output in zip(coefficients[1:], before, strict=True):
            value = value - coefficient * output
        return value / coefficients[0]

    return jax.tree_util.tree_map(invert, drawn, *buffers)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _invert_blt(
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
