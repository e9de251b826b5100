"""The recurrence of the CIFG models: a scan against an unrolled loop, by precision, and its part in a local step.

What is timed is one local step of SGD, of many lanes with parameters of their own as in a round, or of one large batch
as in central training; and the recurrent layer alone, forward and backward. Beside the time of a step in time stands
the least that reading its weights takes: what is above it, a fused kernel could save at most.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator import matrix_products
from benchmarks.accelerator.rounds import draw_batches
from benchmarks.accelerator.timing import first_seconds, memory_now, time_runs
from fedlm.fl_core.rounds.local_sgd import local_step
from fedlm.models.base import Params
from fedlm.models.families.cifg import cifg
from fedlm.models.layers.recurrences.recurrent import Gating, cifg_layer
from fedlm.models.precision import Precision, precision_scope, with_precision
from fedlm.models.registry import MODELS


def measure(
    model: str, precision: Precision, lanes: int, batch: int, length: int, vocabulary: int, unroll: int, patience: float
) -> dict[str, Any]:
    """Time a local step and the recurrent layer within it.

    Args:
      model: name of a CIFG model.
      precision: what it computes in.
      lanes: models that are stepped together.
      batch: rows of each.
      length: time steps.
      vocabulary: number of token ids.
      unroll: time steps that the compiled loop takes at once; all of them leave no loop.
      patience: seconds of timing of each.
    """
    config = dataclasses.replace(MODELS[model].config, vocabulary_size=vocabulary, unroll=unroll)
    built = with_precision(cifg(model, config), precision)
    params = built.init(jax.random.key(0))
    batches = draw_batches(built, (lanes, batch), length)
    copies = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * lanes), params)
    dtype = jnp.bfloat16 if precision == "bfloat16" else jnp.float32
    x = jax.random.normal(jax.random.key(1), (lanes, batch, length, config.embedding), dtype)
    layers = jax.tree_util.tree_map(lambda leaf: leaf.astype(dtype), copies["recurrent"])

    def step(params: Params, rows: Any) -> Params:
        return local_step(built, params, rows, learning_rate=0.1, gradient_clip=None)[0]

    def layer(params: Params, x: jax.Array) -> Any:
        def total(params: Params, x: jax.Array) -> jax.Array:
            return jnp.sum(cifg_layer(params, x, Gating(jax.nn.sigmoid, jnp.tanh), unroll).astype(jnp.float32))

        return jax.grad(total, argnums=(0, 1))(params, x)

    with precision_scope(precision):
        whole, alone = jax.jit(jax.vmap(step)), jax.jit(jax.vmap(layer))
        compiled = first_seconds(lambda: whole(copies, batches))
        of_step = time_runs(lambda: whole(copies, batches), patience)
        first_seconds(lambda: alone(layers, x))
        of_layer = time_runs(lambda: alone(layers, x), patience)
        one = jax.tree_util.tree_map(lambda leaf: leaf[0], (layers, x))
        products = matrix_products.products_of(layer, *one)
    return {
        "lanes": lanes,
        "batch": batch,
        "length": length,
        "unroll": unroll,
        "seconds": of_step.as_json(),
        "seconds_of_first_step": round(compiled, 2),
        "seconds_of_layer": of_layer.as_json(),
        "part_of_layer": of_layer.median / of_step.median,
        "seconds_a_time_step": of_layer.median / (2 * length),
        "products_of_layer": matrix_products.as_json(products),
        "memory": memory_now(),
    }
