"""The CIFG recurrence: an LSTM whose forget gate is one minus its input gate, with a recurrent projection.

Source: Greff et al. 2017, "LSTM: a search space odyssey" (coupled gates); Sak et al. 2014 (projection).
Dimension letters: B batch, T time, E embedding, H hidden.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.base import Params
from fedlm.models.layers import dense, init_dense
from fedlm.models.matrix_products import constant_product, sum_of_outer_products
from fedlm.models.parameter_uses import Recorded, with_tap

Activation = Callable[[jax.Array], jax.Array]
_Pair = tuple[jax.Array, jax.Array]


class CifgState(NamedTuple):
    """What the recurrence goes on with: h_t, float [batch, e], and c_t, [batch, h]."""

    h: jax.Array
    c: jax.Array


def init_cifg_layer(rng: jax.Array, width: int, hidden: int) -> Params:
    """Draw the parameters of one CIFG layer: `3 h (e + e) + 3 h + h e` of them.

    Args:
      rng: PRNG key.
      width: e, the size of inputs, of outputs and of the recurrent projection.
      hidden: h, the size of the cell.

    Returns:
      `input` (a dense layer e -> 3h with bias; input gate, candidate, output gate), `recurrent` (e -> 3h) and
      `projection` (h -> e).
    """
    rng_input, rng_recurrent, rng_projection = jax.random.split(rng, 3)
    params = {
        "input": init_dense(rng_input, width, 3 * hidden, bias=True),
        "recurrent": init_dense(rng_recurrent, width, 3 * hidden),
        "projection": init_dense(rng_projection, hidden, width),
    }
    # Three gates share one matrix: scale each as the e -> h matrix that it is.
    per_gate = math.sqrt((width + 3 * hidden) / (width + hidden))
    for name in ("input", "recurrent"):
        params[name]["kernel"] = params[name]["kernel"] * per_gate
    return params


def cifg_layer(params: Params, x_bxtxe: jax.Array, gate: Activation, cell: Activation, unroll: int = 1) -> jax.Array:
    """Run the recurrence over a batch of sequences, starting from zero state.

    With i, g, o the three blocks of `W x_t + R h_{t-1} + b`:
    `c_t = (1 - gate(i)) c_{t-1} + gate(i) cell(g)` and `h_t = P (gate(o) cell(c_t))`.

    Args:
      params: of `init_cifg_layer`.
      x_bxtxe: float [batch, time, e].
      gate: activation of the two gates, over the last axis.
      cell: activation of the candidate and of the cell's output, over the last axis.
      unroll: time steps that the compiled loop takes at once; results are the same.

    Returns:
      h, float [batch, time, e].
    """
    z_bxtx3h = dense(params["input"], x_bxtxe)
    recurrent_ex3h, projection_hxe = params["recurrent"]["kernel"], params["projection"]["kernel"]
    if isinstance(recurrent_ex3h, Recorded):
        return _recorded_recurrence(gate, cell, unroll, z_bxtx3h, recurrent_ex3h, projection_hxe)
    h_txbxe = _recurrence(gate, cell, unroll, jnp.swapaxes(z_bxtx3h, 0, 1), recurrent_ex3h, projection_hxe)
    return jnp.swapaxes(h_txbxe, 0, 1)


def _recorded_recurrence(
    gate: Activation,
    cell: Activation,
    unroll: int,
    z_bxtx3h: jax.Array,
    recurrent_ex3h: Recorded,
    projection_hxe: Recorded,
) -> jax.Array:
    # Each matrix is used once for all time steps: by h_{t-1} for what is added to z_t, and by m_t for h_t.
    recording = recurrent_ex3h.recording
    z_shape = jax.ShapeDtypeStruct(z_bxtx3h.shape, z_bxtx3h.dtype)
    h_shape = jax.ShapeDtypeStruct((*z_shape.shape[:2], projection_hxe.shape[1]), z_shape.dtype)
    of_recurrent, z_tap = recording.begin(recurrent_ex3h, "multiply", z_shape)
    of_projection, h_tap = recording.begin(projection_hxe, "multiply", h_shape)
    z_txbx3h, h_tap = jnp.swapaxes(with_tap(z_bxtx3h, z_tap), 0, 1), jnp.swapaxes(h_tap, 0, 1)
    h_txbxe, m_txbxh = _unroll(gate, cell, unroll, z_txbx3h, h_tap, recurrent_ex3h.value, projection_hxe.value)
    h_bxtxe = jnp.swapaxes(h_txbxe, 0, 1)
    recording.finish(of_recurrent, jnp.pad(h_bxtxe[:, :-1], ((0, 0), (1, 0), (0, 0))))
    recording.finish(of_projection, jnp.swapaxes(m_txbxh, 0, 1))
    return h_bxtxe


def _unroll(
    gate: Activation,
    cell: Activation,
    unroll: int,
    z_txbx3h: jax.Array,
    shift_txbxe: jax.Array,
    recurrent_ex3h: jax.Array,
    projection_hxe: jax.Array,
) -> _Pair:
    recur, project = constant_product(recurrent_ex3h), constant_product(projection_hxe)

    def step(state: _Pair, inputs: _Pair) -> tuple[_Pair, _Pair]:
        h_bxe, c_bxh = state
        z_bx3h, shift_bxe = inputs
        c_bxh, m_bxh = _next_cell(gate, cell, z_bx3h + recur(h_bxe), c_bxh)
        h_bxe = project(m_bxh) + shift_bxe
        return (h_bxe, c_bxh), (h_bxe, m_bxh)

    start = _zero_state(z_txbx3h.shape[1], projection_hxe)
    _, (h_txbxe, m_txbxh) = jax.lax.scan(step, start, (z_txbx3h, shift_txbxe), unroll=unroll)
    return h_txbxe, m_txbxh


def _next_cell(gate: Activation, cell: Activation, z_bx3h: jax.Array, c_bxh: jax.Array) -> _Pair:
    """Compute c_t, and what h_t is the projection of, of all that is added up in the gates, and c_{t-1}."""
    i, g, o = jnp.split(z_bx3h, 3, axis=-1)
    c_bxh = c_bxh + gate(i) * (cell(g) - c_bxh)
    return c_bxh, gate(o) * cell(c_bxh)


def _zero_state(batch: int, projection_hxe: jax.Array) -> _Pair:
    hidden, width = projection_hxe.shape
    return jnp.zeros((batch, width), projection_hxe.dtype), jnp.zeros((batch, hidden), projection_hxe.dtype)


def begin_cifg(params: Params, batch: int) -> CifgState:
    """Make the state in which the recurrence begins."""
    return CifgState(*_zero_state(batch, params["projection"]["kernel"]))


def read_cifg(
    params: Params, state: CifgState, x_bxtxe: jax.Array, counts: jax.Array, gate: Activation, cell: Activation
) -> CifgState:
    """Go on with the recurrence from a state, by the first `counts`, int32 [batch], of each row's inputs."""
    recur, project = (constant_product(params[name]["kernel"]) for name in ("recurrent", "projection"))

    def step(state: CifgState, inputs: _Pair) -> tuple[CifgState, None]:
        z_bx3h, is_read = inputs
        c_bxh, m_bxh = _next_cell(gate, cell, z_bx3h + recur(state.h), state.c)
        new = CifgState(project(m_bxh), c_bxh)
        return CifgState(*(jnp.where(is_read[:, None], *pair) for pair in zip(new, state, strict=True))), None

    is_read_txb = jnp.arange(x_bxtxe.shape[1])[:, None] < counts
    return jax.lax.scan(step, state, (jnp.swapaxes(dense(params["input"], x_bxtxe), 0, 1), is_read_txb))[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _recurrence(
    gate: Activation,
    cell: Activation,
    unroll: int,
    z_txbx3h: jax.Array,
    recurrent_ex3h: jax.Array,
    projection_hxe: jax.Array,
) -> jax.Array:
    return _recurrence_forward(gate, cell, unroll, z_txbx3h, recurrent_ex3h, projection_hxe)[0]


def _recurrence_forward(
    gate: Activation,
    cell: Activation,
    unroll: int,
    z_txbx3h: jax.Array,
    recurrent_ex3h: jax.Array,
    projection_hxe: jax.Array,
) -> tuple[jax.Array, tuple]:
    # Differentiating by a shift of every pre-activation and of every output, not by the weights, leaves the
    # backward loop free of weight gradients: each is then one matrix product over all time steps.
    no_shift = jnp.zeros((*z_txbx3h.shape[:2], projection_hxe.shape[1]), z_txbx3h.dtype)
    (h_txbxe, m_txbxh), pull_back = jax.vjp(
        lambda z, shift: _unroll(gate, cell, unroll, z, shift, recurrent_ex3h, projection_hxe), z_txbx3h, no_shift
    )
    return h_txbxe, (pull_back, h_txbxe, m_txbxh)


def _recurrence_backward(
    gate: Activation, cell: Activation, unroll: int, residuals: tuple, h_gradient_txbxe: jax.Array
) -> tuple:
    pull_back, h_txbxe, m_txbxh = residuals
    z_gradient, shift_gradient = pull_back((h_gradient_txbxe, jnp.zeros_like(m_txbxh)))
    recurrent_gradient = sum_of_outer_products(h_txbxe[:-1], z_gradient[1:])
    projection_gradient = sum_of_outer_products(m_txbxh, shift_gradient)
    return z_gradient, recurrent_gradient, projection_gradient


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)
