"""The few layers that every model is built from.

Each parameter is used by the functions of `parameter_uses` and nowhere else, so that whoever needs a layer's
input and the gradient at its output (per-example clipping does) finds them there.
"""

import itertools
import math
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

from fedlm.models.base import Params
from fedlm.models.layers.lora import ADAPTER
from fedlm.models.layers.parameter_uses import Parameter, add, look_up, multiply, multiply_transposed, scale

ROWS = "rows"
"""In place of a dense layer's kernel [inputs, outputs] its transpose, which multiplies a few rows faster."""


def init_embedding(rng: jax.Array, vocabulary_size: int, width: int) -> Params:
    """Draw an embedding `{"table": float32 [vocabulary_size, width]}` with rows of unit expected norm."""
    return {"table": jax.random.normal(rng, (vocabulary_size, width)) / math.sqrt(width)}


def embed(params: Params, tokens: jax.Array) -> jax.Array:
    """Look tokens up: int32 [...] to float [..., width]."""
    return look_up(params["table"], tokens)


def logits_from_table(params: Params, bias: Parameter | None, x: jax.Array) -> jax.Array:
    """Score every token by its inner product with x (the output side of a tied, or own, embedding).

    Args:
      params: of `init_embedding`.
      bias: float [vocabulary]; None for none.
      x: float [..., width].

    Returns:
      float [..., vocabulary].
    """
    logits = multiply_transposed(x, params["table"])
    return logits if bias is None else add(logits, bias)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Keep numbers between -cap and cap by `cap tanh(x / cap)`; None leaves them (Gemma Team 2024, "Gemma 2")."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def init_dense(rng: jax.Array, inputs: int, outputs: int, bias: bool = False) -> Params:
    """Draw Glorot-uniform `{"kernel": float32 [inputs, outputs]}`, and a zero `"bias"` [outputs] where wanted."""
    limit = math.sqrt(6 / (inputs + outputs))
    params = {"kernel": jax.random.uniform(rng, (inputs, outputs), minval=-limit, maxval=limit)}
    if bias:
        params["bias"] = jnp.zeros(outputs)
    return params


def dense(params: Params, x: jax.Array) -> jax.Array:
    """Apply a dense layer, and the adapter it may have, over the last axis: float [..., inputs] to [..., outputs]."""
    y = _multiply_by_rows(x, params[ROWS]) if ROWS in params else multiply(x, params["kernel"])
    if ADAPTER in params:
        y = y + params[ADAPTER](x)
    return add(y, params["bias"]) if "bias" in params else y


def dense_together(block: Params, widths: Mapping[str, int], x: jax.Array) -> list[jax.Array]:
    """Apply several dense layers of a block to one input.

    Args:
      block: has each layer by its name, or all in one as `for_few_rows` joins them.
      widths: of the layers' outputs, by name.
      x: float [..., inputs].

    Returns:
      float [..., width] of each layer.
    """
    joined = block.get(_joined(widths))
    if joined is None:
        return [dense(block[name], x) for name in widths]
    return jnp.split(dense(joined, x), list(itertools.accumulate(widths.values()))[:-1], axis=-1)


def for_few_rows(block: Params, *together: Iterable[str]) -> Params:
    """Lay a block's dense layers out for decoding, where a few rows are multiplied by every kernel at every step.

    Such products take as long as the kernels take to read. A CPU reads them fastest by outputs and in few pieces.

    Args:
      block: layers by name.
      together: names of the layers that read the same input, as `dense_together` is given them.

    Returns:
      The block for `dense` and `dense_together`; layers that are not dense are left as they are.
    """
    block = dict(block)
    for names in map(tuple, together):
        layers = [block.pop(name) for name in names]
        block[_joined(names)] = {
            part: jnp.concatenate([layer[part] for layer in layers], axis=-1) for part in layers[0]
        }
    return {name: _by_rows(layer) for name, layer in block.items()}


def _joined(names: Iterable[str]) -> str:
    return "+".join(names)


def _by_rows(layer: Params) -> Params:
    if "kernel" not in layer:
        return layer
    # The barrier keeps the compiler from transposing at every step.
    return {ROWS: jax.lax.optimization_barrier(layer["kernel"].T)} | {
        name: part for name, part in layer.items() if name != "kernel"
    }


def _multiply_by_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
    return (rows @ x.reshape(-1, x.shape[-1]).T).T.reshape(*x.shape[:-1], -1)


def init_layer_norm(width: int) -> Params:
    """Make `{"scale": ones [width], "shift": zeros [width]}`, float32: plain normalisation at first."""
    return {"scale": jnp.ones(width), "shift": jnp.zeros(width)}


def layer_norm(params: Params, x: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Normalise the last axis of float [..., width] to mean 0 and variance 1, computing in float32 (Ba et al. 2016).

    Args:
      params: of `init_layer_norm`.
      x: float [..., width]; the result has its shape and dtype.
      epsilon: added to the variance.
    """
    return add(scale(standardised(x, epsilon), params["scale"]), params["shift"]).astype(x.dtype)


def standardised(x: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Do what `layer_norm` does without parameters, giving float32 or wider."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + epsilon)


def init_gain(width: int) -> Params:
    """Make `{"scale": zeros [width]}`, float32: a gain of 1 at first."""
    return {"scale": jnp.zeros(width)}


def gain(params: Params, x: jax.Array) -> jax.Array:
    """Multiply float [..., width] by 1 + scale, entry by entry; params are of `init_gain`."""
    return x + scale(x, params["scale"])


def rms_norm(params: Params, x: jax.Array, epsilon: float, plus_1: bool = True) -> jax.Array:
    """Divide by the root mean square over the last axis, times a factor, in float32 (Zhang and Sennrich 2019).

    Args:
      params: of `init_gain`.
      x: float [..., width]; the result has its shape and dtype.
      epsilon: added to the mean square.
      plus_1: whether the factor of an entry is 1 + scale, or scale.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    unit = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
    return (gain(params, unit) if plus_1 else scale(unit, params["scale"])).astype(x.dtype)


def rotary_positions(places: jax.Array, width: int, base: float) -> tuple[jax.Array, jax.Array]:
    """Make the cosines and sines of rotary positions, of places int [...] float32 [..., width] each (Su et al. 2021).

    The width is even.

    The wavelengths `2 pi base^(2i / width)` stand twice, once for each half of the width.
    """
    frequency = base ** (-jnp.arange(0, width, 2) / width)
    angle = jnp.tile(places[..., None] * frequency, 2)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
    """Turn the pairs (i, i + width / 2) of heads [batch, length, heads, width] by their position's angles, which
    `rotary_positions` makes: [length, width], or [batch, length, width] where each row has its own."""
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return x * cosines.astype(x.dtype)[..., None, :] + turned * sines.astype(x.dtype)[..., None, :]


def sinusoidal_positions(places: jax.Array, width: int) -> jax.Array:
    """Make the position encodings of Vaswani et al. 2017, section 3.5, of places int [...] float32 [..., width].

    The width is even; all sines come before all cosines.
    """
    frequency = jnp.exp(-math.log(10_000.0) * jnp.arange(0, width, 2) / width)
    angle = places[..., None] * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
