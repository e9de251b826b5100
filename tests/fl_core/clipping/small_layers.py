"""A model of every way to use a parameter, small enough to be compiled for each of many shapes."""

import jax
import jax.numpy as jnp

from fedlm.models.base import Batch, language_model
from fedlm.models.layers.basic import (
    dense,
    embed,
    init_dense,
    init_embedding,
    init_layer_norm,
    layer_norm,
    logits_from_table,
)


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
