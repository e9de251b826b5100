"""The few layers that every model is built from.

Each parameter is used by the functions of `parameter_uses` and nowhere else, so that whoever needs a layer's
input and the gradient at its output (per-example clipping does) finds them there.
"""

import math

import jax
import jax.numpy as jnp

from fedlm.models.base import Params
from fedlm.models.parameter_uses import Parameter, add, look_up, multiply, multiply_transposed, scale


def init_embedding(rng: jax.Array, vocabulary_size: int, width: int) -> Params:
    """Draw an embedding table with rows of unit expected norm.

    Args:
      rng: PRNG key.
      vocabulary_size: number of rows.
      width: embedding size.

    Returns:
      `{"table": float32 [vocabulary_size, width]}`.
    """
    return {"table": jax.random.normal(rng, (vocabulary_size, width)) / math.sqrt(width)}


def embed(params: Params, tokens: jax.Array) -> jax.Array:
    """Look tokens up.

    Args:
      params: of `init_embedding`.
      tokens: int32 [...].

    Returns:
      float [..., width].
    """
    return look_up(params["table"], tokens)


def logits_from_table(params: Params, bias: Parameter, x: jax.Array) -> jax.Array:
    """Score every token by its inner product with x (the output side of a tied, or own, embedding).

    Args:
      params: of `init_embedding`.
      bias: float [vocabulary].
      x: float [..., width].

    Returns:
      float [..., vocabulary].
    """
    return add(multiply_transposed(x, params["table"]), bias)


def init_dense(rng: jax.Array, inputs: int, outputs: int, bias: bool = False) -> Params:
    """Draw a dense layer with Glorot-uniform weights and, if wanted, a zero bias.

    Args:
      rng: PRNG key.
      inputs: input width.
      outputs: output width.
      bias: whether the layer adds a bias.

    Returns:
      `{"kernel": float32 [inputs, outputs]}`, with `"bias": float32 [outputs]` where asked for.
    """
    limit = math.sqrt(6 / (inputs + outputs))
    params = {"kernel": jax.random.uniform(rng, (inputs, outputs), minval=-limit, maxval=limit)}
    if bias:
        params["bias"] = jnp.zeros(outputs)
    return params


def dense(params: Params, x: jax.Array) -> jax.Array:
    """Apply a dense layer over the last axis.

    Args:
      params: of `init_dense`.
      x: float [..., inputs].

    Returns:
      float [..., outputs].
    """
    y = multiply(x, params["kernel"])
    return add(y, params["bias"]) if "bias" in params else y


def init_layer_norm(width: int) -> Params:
    """Make a layer norm that starts as plain normalisation.

    Args:
      width: size of the normalised axis.

    Returns:
      `{"scale": ones [width], "shift": zeros [width]}`, float32.
    """
    return {"scale": jnp.ones(width), "shift": jnp.zeros(width)}


def layer_norm(params: Params, x: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Normalise the last axis to mean 0 and variance 1, computing in float32 (Ba et al. 2016).

    Args:
      params: of `init_layer_norm`.
      x: float [..., width].
      epsilon: added to the variance.

    Returns:
      The shape and dtype of x.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normalised = centred * jax.lax.rsqrt(variance + epsilon)
    return add(scale(normalised, params["scale"]), params["shift"]).astype(x.dtype)


def sinusoidal_positions(length: int, width: int) -> jax.Array:
    """Make the fixed position encodings of Vaswani et al. 2017, section 3.5, all sines before all cosines.

    Args:
      length: number of positions.
      width: model size, even.

    Returns:
      float32 [length, width].
    """
    frequency = jnp.exp(-math.log(10_000.0) * jnp.arange(0, width, 2) / width)
    angle = jnp.arange(length)[:, None] * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
