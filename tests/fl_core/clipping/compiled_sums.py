"""Clipped sums of small models, as tests take them."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.clipping import factored_gradients
from fedlm.fl_core.clipping.methods import Clipping, clipped_sum
from fedlm.models.base import Batch, language_model
from fedlm.models.layers import blocked_head
from fedlm.models.layers.basic import (
    dense,
    embed,
    init_dense,
    init_embedding,
    init_layer_norm,
    layer_norm,
    logits_from_table,
)
from fedlm.models.precision import with_precision
from tests.models.small_models import PUBLISHED_DECODERS, SMALL_MODELS, random_batch

FAST = ("ghost", "bookkeeping")
VOCABULARY, WIDTH = 11, 4
EVERY_MODEL = SMALL_MODELS | PUBLISHED_DECODERS


def every_use(vocabulary, width):
    """Tied embeddings, learned positions, a dense layer used twice, biases and a layer norm."""

    def init(rng):
        rngs = jax.random.split(rng, 4)
        return {
            "table": init_embedding(rngs[0], vocabulary, width),
            "positions": init_embedding(rngs[1], 32, width),
            "dense": init_dense(rngs[2], width, width, bias=True),
            "wide": init_dense(rngs[3], width, 3 * width),
            "norm": init_layer_norm(width),
            "bias": jnp.zeros(vocabulary),
            "unused": jnp.ones((2, 3)),
        }

    def apply(params, tokens):
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        x = embed(params["table"], tokens) + embed(params["positions"], places)
        x = layer_norm(params["norm"], x)
        x = jnp.tanh(dense(params["dense"], jnp.cumsum(x, axis=1)))
        a, b, c = jnp.split(dense(params["wide"], dense(params["dense"], x)), 3, axis=-1)
        return logits_from_table(params["table"], params["bias"], a * b + c)

    return language_model("every_use", vocabulary, init, apply)


def random_units(rng, units, examples, length, vocabulary):
    """Token sequences with repeated tokens, PAD at their ends, and some rows of weight 0."""
    rows = units * examples
    tokens = rng.integers(0, vocabulary, (rows, length + 1)).astype("int32")
    for row in tokens:
        if rng.random() < 0.5:
            row[rng.integers(1, length + 1) :] = 0
        if rng.random() < 0.3:
            row[:] = row[0]
    return Batch(jnp.asarray(tokens), jnp.asarray(rng.random(rows) < 0.8, jnp.float32))


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def compiled(clipping, model, params, batch, units):
    return clipped_sum(clipping, model, params, batch, units=units)


def compiled_anew(clipping, model, units=1):
    """A function of (params, batch) that is compiled where it is called, since the form is chosen while tracing."""
    return jax.jit(lambda params, batch: clipped_sum(clipping, model, params, batch, units=units))


@functools.cache
def model():
    return every_use(VOCABULARY, WIDTH)


def parameters(seed=0):
    return jax.tree_util.tree_map(lambda leaf: leaf + 0.1, model().init(jax.random.key(seed)))


@contextlib.contextmanager
def taking(form):
    """Let all matrices take a form, whatever it costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factored_gradients, "_cheapest_form", lambda *_: form)
        yield


@contextlib.contextmanager
def in_blocks():
    """Make logits in blocks that do not divide the vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MOST_LOGITS": 0, "BLOCK": 0, "_LEAST": 20}.items():
            patch.setattr(blocked_head, name, value)
        yield


def length(gradient):
    leaves = jax.tree_util.tree_leaves(gradient)
    return np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in leaves))


def lengths_of_rows(small, method, precision):
    """Yield the lengths of a small model's gradients by each row of a batch, clipped to 0.05."""
    clipped = compiled_anew(Clipping(method, 0.05), with_precision(small.model, precision))
    for row in range(4):
        batch = jax.tree_util.tree_map(lambda leaf, row=row: leaf[row : row + 1], random_batch())
        yield length(clipped(small.params, batch).gradient)
