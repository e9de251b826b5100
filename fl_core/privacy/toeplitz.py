"""Correlated noise `C^-1 z` of a lower-triangular Toeplitz strategy C, banded or a buffered linear one (BLT)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz
from jax_privacy.matrix_factorization.streaming_matrix import StreamingMatrix

from fl_core.privacy.horizon import check_horizon
from fl_core.privacy.noise_source import Draw
from fl_core.privacy.plan import PrivacyPlan
from models.base import Params


class ToeplitzState(NamedTuple):
    """Counter and buffers.

    Attributes:
      round: int64 scalar, the number of the next round.
      buffers: jax-privacy's, float32: as many copies of the sums' structure as a BLT has buffers, or one less than
        there are bands.
    """

    round: np.ndarray
    buffers: Any


class Toeplitz:
    """See `fl_core.privacy.mechanisms.NoiseMechanism`."""

    def __init__(self, plan: PrivacyPlan, first: int, end: int):
        self._first, self._end = first, end
        matrix = _inverse(plan)
        self._start = matrix.init_multiply
        self._multiply = jax.jit(matrix.multiply_next)

    def init(self, like: Params) -> ToeplitzState:
        """See `NoiseMechanism.init`."""
        shapes = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), like)
        return ToeplitzState(np.asarray(self._first), self._start(shapes))

    def next(self, state: ToeplitzState, draw: Draw) -> tuple[Params, ToeplitzState]:
        """See `NoiseMechanism.next`."""
        number = check_horizon(state.round, self._end)
        noise, buffers = self._multiply(draw([(1.0, (self._first, number))]), state.buffers)
        return noise, ToeplitzState(np.asarray(number + 1), buffers)

    def durable(self, state: ToeplitzState) -> ToeplitzState:
        """See `NoiseMechanism.durable`."""
        return state

    def restore(self, durable: ToeplitzState, like: Params, draw: Draw) -> ToeplitzState:
        """See `NoiseMechanism.restore`."""
        return ToeplitzState(*durable)


def _inverse(plan: PrivacyPlan) -> StreamingMatrix:
    values = np.asarray(plan.coefficients, np.float32)
    if plan.mechanism == "banded":
        return toeplitz.inverse_as_streaming_matrix(jnp.asarray(values))
    decays, scales = np.split(values, 2)
    # Not `build`, which would put the buffers into another order than that of the plan.
    return buffered_toeplitz.BufferedToeplitz(buf_decay=decays, output_scale=scales).inverse_as_streaming_matrix()
