"""The CIFG recurrence: an LSTM whose forget gate is one minus its input gate, with a recurrent projection.

Source: Greff et al. 2017, "LSTM: a search space odyssey" (coupled gates); Sak et al. 2014 (projection).
Dimension letters: B batch, T time, E embedding, H hidden.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.base import Params
from fedlm.models.layers.basic import dense, init_dense
from fedlm.models.layers.lora import ADAPTER
from fedlm.models.layers.matrix_products import constant_product, sum_of_outer_products
from fedlm.models.layers.parameter_uses import Recorded, with_tap
from fedlm.models.layers.recurrences.looped_adapter import LoopedAdapter, Steps

Activation = Callable[[jax.Array], jax.Array]
Advance = Callable[[jax.Array, jax.Array, Any], tuple[jax.Array, jax.Array, Any]]
"""Maps all that is added up in the gates [batch, 3h], c_{t-1} [batch, h], and what is given of a time step, to c_t, to
m_t, of which h_t is the projection, and to whatever else is to be known of the step."""
_Pair = tuple[jax.Array, jax.Array]


class Gating(NamedTuple):
    """Activations of a recurrence over the last axis: of the two gates, and of the candidate and the cell's output."""

    gate: Activation
    cell: Activation

    def advance(self, z_bx3h: jax.Array, c_bxh: jax.Array, now: Any) -> tuple[jax.Array, jax.Array, None]:
        """Make a time step, see `Advance`."""
        i, g, o = jnp.split(z_bx3h, 3, axis=-1)
        c_bxh = c_bxh + self.gate(i) * (self.cell(g) - c_bxh)
        return c_bxh, self.gate(o) * self.cell(c_bxh), None


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


def cifg_layer(params: Params, x_bxtxe: jax.Array, gating: Gating, unroll: int = 1) -> jax.Array:
    """Run the recurrence over a batch of sequences, starting from zero state.

    With i, g, o the three blocks of `W x_t + R h_{t-1} + b`:
    `c_t = (1 - gate(i)) c_{t-1} + gate(i) cell(g)` and `h_t = P (gate(o) cell(c_t))`.

    Args:
      params: of `init_cifg_layer`; its dense layers may have adapters.
      x_bxtxe: float [batch, time, e].
      gating: its activations.
      unroll: time steps that the compiled loop takes at once; results are the same.

    Returns:
      h, float [batch, time, e].
    """
    z_bxtx3h = dense(params["input"], x_bxtxe)
    recurrent, projection = params["recurrent"], params["projection"]
    recurrent_ex3h, projection_hxe = recurrent["kernel"], projection["kernel"]
    if ADAPTER in recurrent or ADAPTER in projection:
        return adapted_recurrence(gating.advance, unroll, z_bxtx3h, recurrent=recurrent, projection=projection)
    if isinstance(recurrent_ex3h, Recorded):
        return _recorded_recurrence(gating, unroll, z_bxtx3h, (recurrent_ex3h, projection_hxe))
    h_txbxe = _recurrence(gating, unroll, jnp.swapaxes(z_bxtx3h, 0, 1), (recurrent_ex3h, projection_hxe))
    return jnp.swapaxes(h_txbxe, 0, 1)


def _recorded_recurrence(
    gating: Gating, unroll: int, z_bxtx3h: jax.Array, matrices: tuple[Recorded, Recorded]
) -> jax.Array:
    # Each matrix is used once for all time steps: by h_{t-1} for what is added to z_t, and by m_t for h_t.
    recurrent_ex3h, projection_hxe = matrices
    recording = recurrent_ex3h.recording
    z_shape = jax.ShapeDtypeStruct(z_bxtx3h.shape, z_bxtx3h.dtype)
    h_shape = jax.ShapeDtypeStruct((*z_shape.shape[:2], projection_hxe.shape[1]), z_shape.dtype)
    of_recurrent, z_tap = recording.begin(recurrent_ex3h, "multiply", z_shape)
    of_projection, h_tap = recording.begin(projection_hxe, "multiply", h_shape)
    z_txbx3h, h_tap = jnp.swapaxes(with_tap(z_bxtx3h, z_tap), 0, 1), jnp.swapaxes(h_tap, 0, 1)
    h_txbxe, m_txbxh = _shifted(gating, unroll, (z_txbx3h, h_tap), (recurrent_ex3h.value, projection_hxe.value))
    h_bxtxe = jnp.swapaxes(h_txbxe, 0, 1)
    recording.finish(of_recurrent, one_later(h_bxtxe))
    recording.finish(of_projection, jnp.swapaxes(m_txbxh, 0, 1))
    return h_bxtxe


def one_later(h_bxtxe: jax.Array) -> jax.Array:
    """Shift float [batch, time, width] by a time step; zeros come first."""
    return jnp.pad(h_bxtxe[:, :-1], ((0, 0), (1, 0), (0, 0)))


def adapted_recurrence(
    advance: Advance, unroll: int, z_bxtx3h: jax.Array, *, recurrent: Params, projection: Params
) -> jax.Array:
    """Run a recurrence with matrices that are constant, and an adapter at one of them or at both; `advance` is given
    nothing of a time step."""
    (batch, time, _), hidden = z_bxtx3h.shape, projection["kernel"].shape[0]
    width = projection["kernel"].shape[1]
    at_z = LoopedAdapter(recurrent.get(ADAPTER), (batch, time, width), z_bxtx3h.dtype)
    at_h = LoopedAdapter(projection.get(ADAPTER), (batch, time, hidden), z_bxtx3h.dtype)
    recur, project = constant_product(recurrent["kernel"]), constant_product(projection["kernel"])

    def at_cell(z_bx3h: jax.Array, c_bxh: jax.Array, given: tuple[Steps, Steps]) -> tuple[jax.Array, jax.Array, Any]:
        return advance(z_bx3h, c_bxh, None)

    def recurred(h_bxe: jax.Array, given: tuple[Steps, Steps]) -> tuple[jax.Array, jax.Array | None]:
        added, narrow = at_z.add(h_bxe, given[0])
        return recur(h_bxe) + added, narrow

    def projected(m_bxh: jax.Array, given: tuple[Steps, Steps]) -> tuple[jax.Array, jax.Array | None]:
        added, narrow = at_h.add(m_bxh, given[1])
        return project(m_bxh) + added, narrow

    given = (at_z.steps, at_h.steps)
    z_txbx3h = jnp.swapaxes(z_bxtx3h, 0, 1)
    start = zero_state(batch, projection["kernel"])
    h_txbxe, m_txbxh, _, *narrow = unroll_recurrence(
        at_cell, unroll, z_txbx3h, given, recur=recurred, project=projected, start=start
    )
    h_bxtxe, m_bxtxh = jnp.swapaxes(h_txbxe, 0, 1), jnp.swapaxes(m_txbxh, 0, 1)
    at_z.finish(one_later(h_bxtxe), narrow[0])
    at_h.finish(m_bxtxh, narrow[1])
    return h_bxtxe


def _shifted(gating: Gating, unroll: int, inputs: _Pair, matrices: _Pair) -> _Pair:
    """Run the loop with constant matrices, on z_t and a shift of each h."""
    (z_txbx3h, shift_txbxe), (recurrent_ex3h, projection_hxe) = inputs, matrices
    recur, project = constant_product(recurrent_ex3h), constant_product(projection_hxe)
    h_txbxe, m_txbxh, *_ = unroll_recurrence(
        gating.advance,
        unroll,
        z_txbx3h,
        shift_txbxe,
        recur=lambda h_bxe, _: (recur(h_bxe), None),
        project=lambda m_bxh, shift_bxe: (project(m_bxh) + shift_bxe, None),
        start=zero_state(z_txbx3h.shape[1], projection_hxe),
    )
    return h_txbxe, m_txbxh


def unroll_recurrence(
    advance: Advance,
    unroll: int,
    z_txbx3h: jax.Array,
    given: Any,
    *,
    recur: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    project: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    start: _Pair,
) -> tuple[jax.Array, jax.Array, Any, Any, Any]:
    """Run the loop.

    Args:
      advance: see `Advance`.
      unroll: time steps that the compiled loop takes at once.
      z_txbx3h: what inputs add to the gates.
      given: what the three functions are given of each time step, arrays with the time first.
      recur: maps h_{t-1} [batch, e] to what is added to z_t [batch, 3h], and whatever else is to be known of it.
      project: maps m_t [batch, h] to h_t [batch, e] in the same way.
      start: h and c before the first step.

    Returns:
      h_t and m_t of all time steps, and what else the three functions gave; the time first.
    """

    def step(state: _Pair, inputs: tuple[jax.Array, Any]) -> tuple[_Pair, tuple[jax.Array, jax.Array, Any, Any, Any]]:
        h_bxe, c_bxh = state
        z_bx3h, now = inputs
        recurred_bx3h, of_recurrent = recur(h_bxe, now)
        c_bxh, m_bxh, of_cell = advance(z_bx3h + recurred_bx3h, c_bxh, now)
        h_bxe, of_projection = project(m_bxh, now)
        return (h_bxe, c_bxh), (h_bxe, m_bxh, of_cell, of_recurrent, of_projection)

    return jax.lax.scan(step, start, (z_txbx3h, given), unroll=unroll)[1]


def zero_state(batch: int, projection_hxe: jax.Array) -> _Pair:
    """Make h_0 and c_0."""
    hidden, width = projection_hxe.shape
    return jnp.zeros((batch, width), projection_hxe.dtype), jnp.zeros((batch, hidden), projection_hxe.dtype)


def begin_cifg(params: Params, batch: int) -> CifgState:
    """Make the state in which the recurrence begins."""
    return CifgState(*zero_state(batch, params["projection"]["kernel"]))


def read_cifg(params: Params, state: CifgState, x_bxtxe: jax.Array, counts: jax.Array, *, gating: Gating) -> CifgState:
    """Go on with the recurrence from a state, by the first `counts`, int32 [batch], of each row's inputs."""
    return read_recurrence(gating.advance, params, state, x_bxtxe, counts=counts)


def read_recurrence(
    advance: Advance, params: Params, state: CifgState, x_bxtxe: jax.Array, *, counts: jax.Array
) -> CifgState:
    """Do what `read_cifg` does, with any cell."""
    recur, project = (constant_product(params[name]["kernel"]) for name in ("recurrent", "projection"))

    def step(state: CifgState, inputs: _Pair) -> tuple[CifgState, None]:
        z_bx3h, is_read = inputs
        c_bxh, m_bxh, _ = advance(z_bx3h + recur(state.h), state.c, None)
        new = CifgState(project(m_bxh), c_bxh)
        return CifgState(*(jnp.where(is_read[:, None], *pair) for pair in zip(new, state, strict=True))), None

    is_read_txb = jnp.arange(x_bxtxe.shape[1])[:, None] < counts
    return jax.lax.scan(step, state, (jnp.swapaxes(dense(params["input"], x_bxtxe), 0, 1), is_read_txb))[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _recurrence(gating: Gating, unroll: int, z_txbx3h: jax.Array, matrices: _Pair) -> jax.Array:
    return _recurrence_forward(gating, unroll, z_txbx3h, matrices)[0]


def _recurrence_forward(gating: Gating, unroll: int, z_txbx3h: jax.Array, matrices: _Pair) -> tuple[jax.Array, tuple]:
    # Differentiating by a shift of every pre-activation and of every output, not by the weights, leaves the
    # backward loop free of weight gradients: each is then one matrix product over all time steps.
    no_shift = jnp.zeros((*z_txbx3h.shape[:2], matrices[1].shape[1]), z_txbx3h.dtype)
    (h_txbxe, m_txbxh), pull_back = jax.vjp(
        lambda z, shift: _shifted(gating, unroll, (z, shift), matrices), z_txbx3h, no_shift
    )
    return h_txbxe, (pull_back, h_txbxe, m_txbxh)


def _recurrence_backward(gating: Gating, unroll: int, residuals: tuple, h_gradient_txbxe: jax.Array) -> tuple:
    pull_back, h_txbxe, m_txbxh = residuals
    z_gradient, shift_gradient = pull_back((h_gradient_txbxe, jnp.zeros_like(m_txbxh)))
    recurrent_gradient = sum_of_outer_products(h_txbxe[:-1], z_gradient[1:])
    projection_gradient = sum_of_outer_products(m_txbxh, shift_gradient)
    return z_gradient, (recurrent_gradient, projection_gradient)


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)
