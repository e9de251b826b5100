"""GRU and LSTM layers: one recurrent matrix, which multiplies the hidden state before.

GRU: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder", with the reset gate after the matrix
product, as cuDNN and PyTorch have it, so that a time step has one product. LSTM: Hochreiter and Schmidhuber 1997 with
the forget gate of Gers et al. 2000, without peepholes. Each layer has one vector of biases, as in Hidasi et al. 2016,
"Session-based recommendations with recurrent neural networks".
Dimension letters: B batch, T time, I inputs, H hidden, G all gates, P what is known of the gates before the loop.
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
from fedlm.models.layers.recurrences.looped_adapter import LoopedAdapter
from fedlm.models.layers.recurrences.recurrent import one_later

State = tuple[jax.Array, ...]
"""What a recurrence goes on with: h, float [batch, hidden], and what else the cell keeps, of the same shape."""
_Recur = Callable[[jax.Array, Any], tuple[jax.Array, Any]]


class Cell(NamedTuple):
    """What a layer does at a time step.

    `W x_t + b` and `R h_{t-1}` have so many blocks of the hidden size each, in one order. The last `apart` of either
    are not added to each other.

    Attributes:
      gates: blocks of either.
      apart: of them, the last that stand alone.
      arrays: that a state has.
      advance: maps the `gates + apart` blocks, float [batch, (gates + apart) hidden], and a state to the next. First
        come those of `W x_t + b` that stand alone, then the sums, then those of `R h_{t-1}` that stand alone.
    """

    gates: int
    apart: int
    arrays: int
    advance: Callable[[jax.Array, State], State]


def _gru(blocks: jax.Array, state: State) -> State:
    (h,) = state
    candidate, reset, update, recurred = jnp.split(blocks, 4, axis=-1)
    candidate = jnp.tanh(candidate + jax.nn.sigmoid(reset) * recurred)
    return (candidate + jax.nn.sigmoid(update) * (h - candidate),)


def _lstm(blocks: jax.Array, state: State) -> State:
    _, c = state
    i, f, g, o = jnp.split(blocks, 4, axis=-1)
    # A forget gate that is open at first lets gradients through (Jozefowicz et al. 2015).
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


GRU = Cell(gates=3, apart=1, arrays=1, advance=_gru)
"""With r, z, n the blocks of `W x_t + b` and u_r, u_z, u_n those of `R h_{t-1}`: `n_t = tanh(n + s(r + u_r) u_n)` and
`h_t = (1 - s(z + u_z)) n_t + s(z + u_z) h_{t-1}`, s the sigmoid."""
LSTM = Cell(gates=4, apart=0, arrays=2, advance=_lstm)
"""With i, f, g, o the blocks of `W x_t + R h_{t-1} + b`: `c_t = s(f + 1) c_{t-1} + s(i) tanh(g)` and `h_t = s(o)
tanh(c_t)`, s the sigmoid."""


def init_recurrent_layer(cell: Cell, rng: jax.Array, inputs: int, hidden: int) -> Params:
    """Draw the parameters of one layer: `gates hidden (inputs + hidden + 1)` of them.

    Returns:
      `input`, a dense layer with bias, inputs -> gates hidden, and `recurrent`, one without, hidden -> gates hidden;
      each gate's part is drawn as the matrix that it is.
    """
    rng_input, rng_recurrent = jax.random.split(rng)
    gates = cell.gates * hidden
    params = {
        "input": init_dense(rng_input, inputs, gates, bias=True),
        "recurrent": init_dense(rng_recurrent, hidden, gates),
    }
    for name, rows in (("input", inputs), ("recurrent", hidden)):
        params[name]["kernel"] = params[name]["kernel"] * math.sqrt((rows + gates) / (rows + hidden))
    return params


def recurrent_layer(cell: Cell, params: Params, x_bxtxi: jax.Array, unroll: int = 1) -> jax.Array:
    """Run the recurrence over a batch of sequences, starting from zero state.

    Args:
      cell: what happens at a time step.
      params: of `init_recurrent_layer`; its dense layers may have adapters.
      x_bxtxi: float [batch, time, inputs].
      unroll: time steps that the compiled loop takes at once; results are the same.

    Returns:
      h, float [batch, time, hidden].
    """
    blocks_bxtxp, recurrent = _of_inputs(cell, params, x_bxtxi), params["recurrent"]
    kernel_hxg = recurrent["kernel"]
    if ADAPTER in recurrent:
        return _adapted(cell, unroll, blocks_bxtxp, recurrent)
    if isinstance(kernel_hxg, Recorded):
        return _recorded(cell, unroll, blocks_bxtxp, kernel_hxg)
    h_txbxh = _recurrence(cell, unroll, jnp.swapaxes(blocks_bxtxp, 0, 1), kernel_hxg)
    return jnp.swapaxes(h_txbxh, 0, 1)


def _of_inputs(cell: Cell, params: Params, x_bxtxi: jax.Array) -> jax.Array:
    """Make all blocks, as far as inputs say what they are."""
    z_bxtxg = dense(params["input"], x_bxtxi)
    apart = cell.apart * params["recurrent"]["kernel"].shape[0]
    if not apart:
        return z_bxtxg
    added, alone = jnp.split(z_bxtxg, [z_bxtxg.shape[-1] - apart], axis=-1)
    return jnp.concatenate([alone, added, jnp.zeros_like(alone)], axis=-1)


def _change_recurred(cell: Cell, blocks: jax.Array, change: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Change those of float [..., blocks] to which the recurrence adds."""
    if not cell.apart:
        return change(blocks)
    alone = cell.apart * blocks.shape[-1] // (cell.gates + cell.apart)
    return jnp.concatenate([blocks[..., :alone], change(blocks[..., alone:])], axis=-1)


def _recorded(cell: Cell, unroll: int, blocks_bxtxp: jax.Array, kernel_hxg: Recorded) -> jax.Array:
    # The matrix is used once for all time steps: by h_{t-1} for what is added to the blocks of step t.
    recording = kernel_hxg.recording
    output = jax.ShapeDtypeStruct((*blocks_bxtxp.shape[:2], kernel_hxg.shape[1]), blocks_bxtxp.dtype)
    number, tap = recording.begin(kernel_hxg, "multiply", output)
    blocks_bxtxp = _change_recurred(cell, blocks_bxtxp, lambda blocks: with_tap(blocks, tap))
    h_txbxh = _constant(cell, unroll, jnp.swapaxes(blocks_bxtxp, 0, 1), kernel_hxg.value)
    h_bxtxh = jnp.swapaxes(h_txbxh, 0, 1)
    recording.finish(number, one_later(h_bxtxh))
    return h_bxtxh


def _adapted(cell: Cell, unroll: int, blocks_bxtxp: jax.Array, recurrent: Params) -> jax.Array:
    """Run the recurrence with a matrix that is constant, and its adapter."""
    (batch, time, _), hidden = blocks_bxtxp.shape, recurrent["kernel"].shape[0]
    adapter = LoopedAdapter(recurrent[ADAPTER], (batch, time, hidden), blocks_bxtxp.dtype)
    product = constant_product(recurrent["kernel"])

    def recur(h_bxh: jax.Array, given: Any) -> tuple[jax.Array, Any]:
        added, narrow = adapter.add(h_bxh, given)
        return product(h_bxh) + added, narrow

    start = _zero_state(cell, batch, recurrent["kernel"])
    h_txbxh, narrow = _unroll(cell, unroll, jnp.swapaxes(blocks_bxtxp, 0, 1), adapter.steps, recur=recur, start=start)
    h_bxtxh = jnp.swapaxes(h_txbxh, 0, 1)
    adapter.finish(one_later(h_bxtxh), narrow)
    return h_bxtxh


def _constant(cell: Cell, unroll: int, blocks_txbxp: jax.Array, kernel_hxg: jax.Array) -> jax.Array:
    """Run the loop with a matrix that is constant."""
    product = constant_product(kernel_hxg)
    start = _zero_state(cell, blocks_txbxp.shape[1], kernel_hxg)
    return _unroll(cell, unroll, blocks_txbxp, None, recur=lambda h_bxh, _: (product(h_bxh), None), start=start)[0]


def _unroll(
    cell: Cell, unroll: int, blocks_txbxp: jax.Array, given: Any, *, recur: _Recur, start: State
) -> tuple[jax.Array, Any]:
    """Run the loop.

    Args:
      given: what `recur` is given of each time step, arrays with the time first.
      recur: maps h_{t-1} [batch, hidden] to what is added to the blocks, and whatever else is to be known of it.
      start: the state before the first step.

    Returns:
      h_t of all time steps, and what else `recur` gave; the time first.
    """

    def step(state: State, inputs: tuple[jax.Array, Any]) -> tuple[State, tuple[jax.Array, Any]]:
        blocks_bxp, now = inputs
        recurred_bxg, of_recurrent = recur(state[0], now)
        state = cell.advance(_change_recurred(cell, blocks_bxp, lambda blocks: blocks + recurred_bxg), state)
        return state, (state[0], of_recurrent)

    return jax.lax.scan(step, start, (blocks_txbxp, given), unroll=unroll)[1]


def _zero_state(cell: Cell, batch: int, kernel_hxg: jax.Array) -> State:
    return (jnp.zeros((batch, kernel_hxg.shape[0]), kernel_hxg.dtype),) * cell.arrays


def begin_recurrent(cell: Cell, params: Params, batch: int) -> State:
    """Make the state in which the recurrence begins."""
    return _zero_state(cell, batch, params["recurrent"]["kernel"])


def read_recurrent(
    cell: Cell, params: Params, state: State, x_bxtxi: jax.Array, *, counts: jax.Array
) -> tuple[jax.Array, State]:
    """Go on with the recurrence from a state, by the first `counts`, int32 [batch], of each row's inputs.

    Returns h, float [batch, time, hidden], which means nothing beyond the counts, and the next state.
    """
    product = constant_product(params["recurrent"]["kernel"])

    def step(state: State, inputs: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        blocks_bxp, is_read = inputs
        recurred_bxg = product(state[0])
        new = cell.advance(_change_recurred(cell, blocks_bxp, lambda blocks: blocks + recurred_bxg), state)
        state = tuple(jnp.where(is_read[:, None], *pair) for pair in zip(new, state, strict=True))
        return state, state[0]

    is_read_txb = jnp.arange(x_bxtxi.shape[1])[:, None] < counts
    blocks_txbxp = jnp.swapaxes(_of_inputs(cell, params, x_bxtxi), 0, 1)
    state, h_txbxh = jax.lax.scan(step, state, (blocks_txbxp, is_read_txb))
    return jnp.swapaxes(h_txbxh, 0, 1), state


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _recurrence(cell: Cell, unroll: int, blocks_txbxp: jax.Array, kernel_hxg: jax.Array) -> jax.Array:
    return _constant(cell, unroll, blocks_txbxp, kernel_hxg)


def _recurrence_forward(
    cell: Cell, unroll: int, blocks_txbxp: jax.Array, kernel_hxg: jax.Array
) -> tuple[jax.Array, tuple]:
    # As in the CIFG's recurrence, the weight's gradient is one matrix product over all time steps.
    h_txbxh, pull_back = jax.vjp(lambda blocks: _constant(cell, unroll, blocks, kernel_hxg), blocks_txbxp)
    return h_txbxh, (pull_back, h_txbxh)


def _recurrence_backward(cell: Cell, unroll: int, residuals: tuple, h_gradient_txbxh: jax.Array) -> tuple:
    pull_back, h_txbxh = residuals
    (gradient_txbxp,) = pull_back(h_gradient_txbxh)
    recurred_txbxg = gradient_txbxp[1:, :, cell.apart * h_txbxh.shape[-1] :]
    return gradient_txbxp, sum_of_outer_products(h_txbxh[:-1], recurred_txbxg)


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)
