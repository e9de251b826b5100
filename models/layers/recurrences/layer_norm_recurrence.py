"""The CIFG recurrence with layer normalisation within: what else makes a recurrence mind its weights' scale less.

Source: Ba et al. 2016, "Layer normalization": gates and cell are normalised over the hidden units, with a factor and a
shift for each. As in TensorFlow's LayerNormBasicLSTMCell each gate is normalised by itself, after
inputs and state are added up, which is where the scale-invariant activations normalise, too.
Dimension letters: B batch, T time, E embedding, H hidden.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.base import Params
from fedlm.models.layers.basic import dense, init_layer_norm, standardised
from fedlm.models.layers.lora import ADAPTER
from fedlm.models.layers.matrix_products import constant_product, sum_of_outer_products
from fedlm.models.layers.parameter_uses import Recorded, with_tap
from fedlm.models.layers.recurrences.recurrent import (
    Advance,
    CifgState,
    adapted_recurrence,
    init_cifg_layer,
    one_later,
    read_recurrence,
    unroll_recurrence,
    zero_state,
)


class _Weights(NamedTuple):
    """The parameters that are used within the loop, or arrays that belong to each."""

    recurrent: Any
    gate_scale: Any
    gate_shift: Any
    cell_scale: Any
    cell_shift: Any
    projection: Any


class _Shifts(NamedTuple):
    """What is added to the outputs of layers within the loop; each [time, batch, width]."""

    gates: jax.Array
    cell: jax.Array
    h: jax.Array


class _Seen(NamedTuple):
    """What comes into the layers within the loop; each [time, batch, width]."""

    m: jax.Array
    gates: jax.Array
    cell: jax.Array


_KINDS: _Weights = _Weights("multiply", "scale", "add", "scale", "add", "multiply")


def init_layer_norm_cifg_layer(rng: jax.Array, width: int, hidden: int) -> Params:
    """Draw the parameters of one layer: `3 h (e + e) + h e + 8 h` of them.

    Returns:
      What `init_cifg_layer` draws but for its bias, `gate_norm` of 3h and `cell_norm` of h.
    """
    params = init_cifg_layer(rng, width, hidden)
    norms = {"gate_norm": init_layer_norm(3 * hidden), "cell_norm": init_layer_norm(hidden)}
    return {**params, "input": {"kernel": params["input"]["kernel"]}, **norms}


def layer_norm_cifg_layer(params: Params, x_bxtxe: jax.Array, unroll: int = 1) -> jax.Array:
    """Run the recurrence over a batch of sequences, starting from zero state.

    With i, g, o the three blocks of `W x_t + R h_{t-1}`, each normalised by itself, and s the sigmoid:
    `c_t = (1 - s(i)) c_{t-1} + s(i) tanh(g)` and `h_t = P (s(o) tanh(norm(c_t)))`.

    Args:
      params: of `init_layer_norm_cifg_layer`; its dense layers may have adapters.
      x_bxtxe: float [batch, time, e].
      unroll: time steps that the compiled loop takes at once; results are the same.

    Returns:
      h, float [batch, time, e].
    """
    z_bxtx3h, weights = dense(params["input"], x_bxtxe), _weights_of(params)
    if ADAPTER in params["recurrent"] or ADAPTER in params["projection"]:
        return adapted_recurrence(
            _advance_by(weights), unroll, z_bxtx3h, recurrent=params["recurrent"], projection=params["projection"]
        )
    if isinstance(weights.recurrent, Recorded):
        return _recorded(unroll, z_bxtx3h, weights)
    return jnp.swapaxes(_recurrence(unroll, jnp.swapaxes(z_bxtx3h, 0, 1), weights), 0, 1)


def read_layer_norm_cifg(params: Params, state: CifgState, x_bxtxe: jax.Array, counts: jax.Array) -> CifgState:
    """Go on with the recurrence from a state, by the first `counts`, int32 [batch], of each row's inputs."""
    return read_recurrence(_advance_by(_weights_of(params)), params, state, x_bxtxe, counts=counts)


def _weights_of(params: Params) -> _Weights:
    gate, cell = params["gate_norm"], params["cell_norm"]
    return _Weights(
        params["recurrent"]["kernel"],
        gate["scale"],
        gate["shift"],
        cell["scale"],
        cell["shift"],
        params["projection"]["kernel"],
    )


def _advance_by(weights: _Weights) -> Advance:
    """Make a time step whose gates and cell are shifted by what is given of it, if anything is."""

    def advance(
        z_bx3h: jax.Array, c_bxh: jax.Array, now: _Shifts | None
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
        dtype = c_bxh.dtype
        by_gate = standardised(z_bx3h.reshape(*z_bx3h.shape[:-1], 3, -1))
        gates = by_gate.reshape(z_bx3h.shape).astype(dtype)
        i, g, o = jnp.split(_affine(gates, weights.gate_scale, weights.gate_shift, now and now.gates), 3, axis=-1)
        c_bxh = c_bxh + jax.nn.sigmoid(i) * (jnp.tanh(g) - c_bxh)
        cell = standardised(c_bxh).astype(dtype)
        shown = _affine(cell, weights.cell_scale, weights.cell_shift, now and now.cell)
        return c_bxh, jax.nn.sigmoid(o) * jnp.tanh(shown), (gates, cell)

    return advance


def _affine(x: jax.Array, scale: jax.Array, shift: jax.Array, more: jax.Array | None) -> jax.Array:
    y = x * scale + shift
    return y if more is None else y + more


def _shifted(unroll: int, z_txbx3h: jax.Array, shifts: _Shifts, weights: _Weights) -> tuple[jax.Array, _Seen]:
    """Run the loop with constant parameters and shifts of what they give."""
    recur, project = constant_product(weights.recurrent), constant_product(weights.projection)
    h_txbxe, m_txbxh, of_cell, *_ = unroll_recurrence(
        _advance_by(weights),
        unroll,
        z_txbx3h,
        shifts,
        recur=lambda h_bxe, _: (recur(h_bxe), None),
        project=lambda m_bxh, now: (project(m_bxh) + now.h, None),
        start=zero_state(z_txbx3h.shape[1], weights.projection),
    )
    return h_txbxe, _Seen(m_txbxh, *of_cell)


def _recorded(unroll: int, z_bxtx3h: jax.Array, weights: _Weights) -> jax.Array:
    # Each parameter is used once for all time steps.
    batch, time, _ = z_bxtx3h.shape
    hidden, width = weights.projection.shape
    widths = _Weights(3 * hidden, 3 * hidden, 3 * hidden, hidden, hidden, width)
    numbers, taps = [], []
    for weight, kind, size in zip(weights, _KINDS, widths, strict=True):
        output = jax.ShapeDtypeStruct((batch, time, size), z_bxtx3h.dtype)
        number, tap = weight.recording.begin(weight, kind, output)
        numbers.append(number)
        taps.append(tap)
    at = _Weights(*taps)
    # A factor and a shift are followed by the same gradient.
    shifts = _Shifts(at.gate_scale + at.gate_shift, at.cell_scale + at.cell_shift, at.projection)
    h_txbxe, seen = _shifted(
        unroll,
        jnp.swapaxes(with_tap(z_bxtx3h, at.recurrent), 0, 1),
        jax.tree_util.tree_map(lambda shift: jnp.swapaxes(shift, 0, 1), shifts),
        jax.tree_util.tree_map(lambda weight: weight.value, weights),
    )
    h_bxtxe = jnp.swapaxes(h_txbxe, 0, 1)
    m, gates, cell = (jnp.swapaxes(leaf, 0, 1) for leaf in seen)
    inputs = _Weights(one_later(h_bxtxe), gates, None, cell, None, m)
    for weight, number, came_in in zip(weights, numbers, inputs, strict=True):
        weight.recording.finish(number, came_in)
    return h_bxtxe


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recurrence(unroll: int, z_txbx3h: jax.Array, weights: _Weights) -> jax.Array:
    return _shifted(unroll, z_txbx3h, _no_shifts(z_txbx3h, weights), weights)[0]


def _no_shifts(z_txbx3h: jax.Array, weights: _Weights) -> _Shifts:
    hidden, width = weights.projection.shape
    return _Shifts(*(jnp.zeros((*z_txbx3h.shape[:2], size), z_txbx3h.dtype) for size in (3 * hidden, hidden, width)))


def _recurrence_forward(unroll: int, z_txbx3h: jax.Array, weights: _Weights) -> tuple[jax.Array, tuple]:
    # As in the CIFG's recurrence, each weight's gradient is one sum over all time steps.
    (h_txbxe, seen), pull_back = jax.vjp(
        lambda z, shifts: _shifted(unroll, z, shifts, weights), z_txbx3h, _no_shifts(z_txbx3h, weights)
    )
    return h_txbxe, (pull_back, h_txbxe, seen)


def _recurrence_backward(unroll: int, residuals: tuple, h_gradient_txbxe: jax.Array) -> tuple[jax.Array, _Weights]:
    pull_back, h_txbxe, seen = residuals
    z, shifts = pull_back((h_gradient_txbxe, jax.tree_util.tree_map(jnp.zeros_like, seen)))
    return z, _Weights(
        recurrent=sum_of_outer_products(h_txbxe[:-1], z[1:]),
        gate_scale=jnp.sum(seen.gates * shifts.gates, axis=(0, 1)),
        gate_shift=jnp.sum(shifts.gates, axis=(0, 1)),
        cell_scale=jnp.sum(seen.cell * shifts.cell, axis=(0, 1)),
        cell_shift=jnp.sum(shifts.cell, axis=(0, 1)),
        projection=sum_of_outer_products(seen.m, shifts.h),
    )


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)
