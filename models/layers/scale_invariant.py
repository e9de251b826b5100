"""Scale-invariant activations: f(a x) = f(x) for every a > 0.

Source: Ro et al. 2024, "Efficient language model architectures for differentially private federated
learning". Half-precision inputs are normalised in float32, so that neither a row's maximum nor its sum can
overflow; a row whose maximum is zero (or below the smallest normal float32) gives zeros with zero gradient.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def si_sigmoid(x: jax.Array) -> jax.Array:
    """Scale-invariant replacement of the sigmoid: `relu(x) / max_j relu(x)_j` over the last axis.

    Values lie in [0, 1], in the dtype of x; a row without a positive entry gives zeros.
    """
    return _divide_by_row(jax.nn.relu(x), jnp.max)


def si_tanh(x: jax.Array) -> jax.Array:
    """Scale-invariant replacement of tanh: `x / max_j |x_j|` over the last axis.

    Values lie in [-1, 1], in the dtype of x; a row of zeros gives zeros.
    """
    return _divide_by_row(x, lambda values, **axis: jnp.max(jnp.abs(values), **axis))


def si_attention_weights(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Scale-invariant replacement of the masked softmax: `N(relu(scores))`, each row divided by its sum.

    Args:
      scores: float [..., queries, keys].
      mask: bool, broadcastable to scores; False where a query may not look.

    Returns:
      The same shape and dtype; rows sum to 1, or to 0 where no visible score is positive.
    """
    positive = _at_least_float32(jax.nn.relu(jnp.where(mask, scores, 0.0)))
    # Dividing by the maximum first keeps the sum in range; the result does not depend on that maximum, so
    # no gradient needs to pass through it.
    scaled = _divide_by_row(positive, lambda values, **axis: jax.lax.stop_gradient(jnp.max(values, **axis)))
    return _divide_by_row(scaled, jnp.sum).astype(scores.dtype)


def unit_rms(x: jax.Array) -> jax.Array:
    """Divide each row, over the last axis, by its root mean square, in the dtype of x; a row of zeros gives zeros."""
    # Dividing by the largest first keeps the squares in range, as in the attention above.
    scaled = _divide_by_row(
        _at_least_float32(x), lambda values, **axis: jax.lax.stop_gradient(jnp.max(jnp.abs(values), **axis))
    )
    return _divide_by_rms(scaled).astype(x.dtype)


@jax.custom_jvp
def _divide_by_rms(x: jax.Array) -> jax.Array:
    return x / _rms_or_1(x)


@_divide_by_rms.defjvp
def _divide_by_rms_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    rms = _rms_or_1(x)
    ratio, along = x / rms, tangent / rms
    # The mean's divisor stands where it keeps sums in range when this is transposed.
    return ratio, along - ratio / x.shape[-1] * jnp.sum(ratio * along, axis=-1, keepdims=True)


def _rms_or_1(x: jax.Array) -> jax.Array:
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return jnp.sqrt(jnp.where(mean_square > 0, mean_square, 1.0))


def _divide_by_row(x: jax.Array, row_statistic: Callable[..., jax.Array]) -> jax.Array:
    wide = _at_least_float32(x)
    row = row_statistic(wide, axis=-1, keepdims=True)
    nonzero = row >= jnp.finfo(wide.dtype).tiny
    return jnp.where(nonzero, _ratio(wide, jnp.where(nonzero, row, 1.0)), 0.0).astype(x.dtype)


def _at_least_float32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


@jax.custom_jvp
def _ratio(x: jax.Array, row: jax.Array) -> jax.Array:
    # The compiler multiplies by a reciprocal; an exact power of two keeps that above the range's lower end.
    scale = jnp.where(row > 2.0**64, 2.0**-64, 1.0).astype(row.dtype)
    return (x * scale) / (row * scale)


@_ratio.defjvp
def _ratio_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # The usual rule divides by row squared, which leaves the range of float32 long before the result does.
    (x, row), (x_tangent, row_tangent) = primals, tangents
    ratio = _ratio(x, row)
    return ratio, (x_tangent - ratio * row_tangent) / row
