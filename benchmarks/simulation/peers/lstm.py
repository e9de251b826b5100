"""The LSTM language model that every framework has a layer for, written for JAX; it is in no registry of fedlm's.

Dimension letters: B batch, T time, E embedding, H hidden.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedlm.models.base import Model, Params
from fedlm.models.layers.basic import dense, embed, init_dense, init_embedding
from fedlm.models.layers.linear_head import linear_head_model
from fedlm.models.layers.matrix_products import constant_product, sum_of_outer_products

_Pair = tuple[jax.Array, jax.Array]


def lstm(name: str, vocabulary_size: int, embedding: int = 128, hidden: int = 384) -> Model:
    """Make an LSTM language model: embedding, LSTM, a dense layer back to the embedding's width, tied output.

    Args:
      name: the model's name.
      vocabulary_size: number of token ids.
      embedding: e, the width of the embeddings.
      hidden: h, the size of the cell.

    Returns:
      The model; it has `Ve + 4h (e + h) + 4h + he + V` parameters.
    """

    def init(rng: jax.Array) -> Params:
        rng_embedding, rng_input, rng_recurrent, rng_output = jax.random.split(rng, 4)
        params = {
            "embedding": init_embedding(rng_embedding, vocabulary_size, embedding),
            "input": init_dense(rng_input, embedding, 4 * hidden, bias=True),
            "recurrent": init_dense(rng_recurrent, hidden, 4 * hidden),
            "projection": init_dense(rng_output, hidden, embedding),
            "output_bias": jnp.zeros(vocabulary_size),
        }
        # Four gates share one matrix: scale each as the matrix that it is.
        for layer, width in (("input", embedding), ("recurrent", hidden)):
            params[layer]["kernel"] *= math.sqrt((width + 4 * hidden) / (width + hidden))
        return params

    def features(params: Params, tokens: jax.Array) -> jax.Array:
        x = embed(params["embedding"], tokens) * embedding**0.5
        z_txbx4h = jnp.swapaxes(dense(params["input"], x), 0, 1)
        h_txbxh = _recurrence(z_txbx4h, params["recurrent"]["kernel"])
        return dense(params["projection"], jnp.swapaxes(h_txbxh, 0, 1))

    def head(params: Params) -> tuple[Params, jax.Array]:
        return params["embedding"], params["output_bias"]

    return linear_head_model(name, vocabulary_size, init=init, features=features, head=head)


def _unroll(z_txbx4h: jax.Array, recurrent_hx4h: jax.Array) -> jax.Array:
    recur = constant_product(recurrent_hx4h)

    def step(state: _Pair, z_bx4h: jax.Array) -> tuple[_Pair, jax.Array]:
        h_bxh, c_bxh = state
        i, f, g, o = jnp.split(z_bx4h + recur(h_bxh), 4, axis=-1)
        c_bxh = jax.nn.sigmoid(f) * c_bxh + jax.nn.sigmoid(i) * jnp.tanh(g)
        h_bxh = jax.nn.sigmoid(o) * jnp.tanh(c_bxh)
        return (h_bxh, c_bxh), h_bxh

    start = jnp.zeros((z_txbx4h.shape[1], recurrent_hx4h.shape[0]), z_txbx4h.dtype)
    return jax.lax.scan(step, (start, start), z_txbx4h)[1]


@jax.custom_vjp
def _recurrence(z_txbx4h: jax.Array, recurrent_hx4h: jax.Array) -> jax.Array:
    return _unroll(z_txbx4h, recurrent_hx4h)


def _recurrence_forward(z_txbx4h: jax.Array, recurrent_hx4h: jax.Array) -> tuple[jax.Array, Any]:
    h_txbxh, pull_back = jax.vjp(lambda z: _unroll(z, recurrent_hx4h), z_txbx4h)
    return h_txbxh, (pull_back, h_txbxh)


def _recurrence_backward(residuals: Any, gradient_txbxh: jax.Array) -> _Pair:
    # As in models/layers/recurrences/recurrent.py: the weights' gradient is one matrix product over all steps, after
    # the loop.
    pull_back, h_txbxh = residuals
    (z_gradient,) = pull_back(gradient_txbxh)
    return z_gradient, sum_of_outer_products(h_txbxh[:-1], z_gradient[1:])


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)
