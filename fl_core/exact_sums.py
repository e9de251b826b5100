"""Exact sums of real vectors: each is rounded to a grid, and integers are added, in whatever order.

Every coordinate is a multiple of the grid's step, a power of two that follows from the clip norm and the number of
coordinates alone. A sum is kept as two int32 numbers a coordinate, in base 2^20, so that 2^21 vectors of the clip norm
may lie along one axis.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fedlm_client.secure_aggregation.sum_vector import SAFETY as SAFETY
from fedlm.models.base import Params

Rounding = Literal["toward_zero", "to_nearest"]
GRID_BITS = 12
LEAST_CLIP_NORM, MOST_CLIP_NORM = 2.0**-30, 2.0**60
"""Between which float32 holds norms and the step. Squares below 2^-126 count for nothing in a norm: 2^32 numbers as
small have a norm of 2^-47, far below the least clip norm."""
_LOW_BITS = 20


class ExactSum(NamedTuple):
    """Integers `high * 2^20 + low`, in units of the grid's step.

    Attributes:
      low: int32, from 0 to below 2^20.
      high: int32.
    """

    low: jax.Array
    high: jax.Array


def is_exact(node: Any) -> bool:
    """Say whether a node of a pytree is an `ExactSum`."""
    return isinstance(node, ExactSum)


def grid_shift(coordinates: int) -> int:
    """Count how many times the clip norm's power of two is halved: the step is at most 2^-12 of the clip norm in all
    coordinates together, `step sqrt(coordinates) <= 2^-12 clip_norm`."""
    return GRID_BITS + ((max(coordinates, 1) - 1).bit_length() + 1) // 2


def grid_step(clip_norm: jax.typing.ArrayLike, coordinates: int) -> jax.Array:
    """Compute the grid's step, a power of two, of the type of the clip norm."""
    _, exponent = jnp.frexp(clip_norm)
    return jnp.ldexp(jnp.ones_like(jnp.asarray(clip_norm)), exponent - 1 - grid_shift(coordinates))


def number_of_coordinates(like: Params) -> int:
    """Count the numbers of a vector, given its arrays or shapes."""
    return sum(leaf.size for leaf in jax.tree_util.tree_leaves(like))


def shaped(values: np.ndarray, like: Params) -> Params:
    """Cut a vector into float32 arrays of the shapes of others, in the order of their leaves."""
    leaves, structure = jax.tree_util.tree_flatten(like)
    parts = np.split(values, np.cumsum([leaf.size for leaf in leaves])[:-1])
    arrays = [jnp.asarray(part.reshape(leaf.shape), jnp.float32) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, arrays)


def empty_sum(like: Params) -> Params:
    """Make the sum of nothing, for vectors of some arrays or shapes."""

    def zeros(leaf: Any) -> ExactSum:
        return ExactSum(jnp.zeros(leaf.shape, jnp.int32), jnp.zeros(leaf.shape, jnp.int32))

    return jax.tree_util.tree_map(zeros, like)


def on_grid(vector: Params, step: jax.Array, rounding: Rounding) -> Params:
    """Round a vector to the grid.

    Toward zero no vector gets longer. To nearest, a vector moves by at most `step sqrt(coordinates) / 2`.

    Args:
      vector: float32 arrays, below 2^50 steps.
      step: float32 scalar, of `grid_step`.
      rounding: which way.

    Returns:
      An `ExactSum` in place of each array.
    """
    whole = jnp.trunc if rounding == "toward_zero" else jnp.round

    def rounded(leaf: jax.Array) -> ExactSum:
        # Division by a power of two, and splitting a whole number in two, round nothing.
        number = whole(leaf / step)
        high = jnp.floor(number * 2.0**-_LOW_BITS)
        return ExactSum((number - high * 2.0**_LOW_BITS).astype(jnp.int32), high.astype(jnp.int32))

    return jax.tree_util.tree_map(rounded, vector)


def normalized(sums: Params) -> Params:
    """Carry what is too much in the low numbers of a tree over to the high ones; leaves other arrays as they are."""

    def carried(node: Any) -> Any:
        if not is_exact(node):
            return node
        return ExactSum(node.low & ((1 << _LOW_BITS) - 1), node.high + (node.low >> _LOW_BITS))

    return jax.tree_util.tree_map(carried, sums, is_leaf=is_exact)


def summed(sums: Params) -> Params:
    """Add up a tree along the first axis of its arrays: at most 2^21 normalized sums."""

    def over_axis(node: Any) -> Any:
        if not is_exact(node):
            return jnp.sum(node, axis=0)
        # Whole low numbers would overflow from 2^11 of them on; halves do not.
        half = _LOW_BITS // 2
        mask = (1 << half) - 1
        low, middle, high = (
            jnp.sum(part, axis=0, dtype=jnp.int32) for part in (node.low & mask, node.low >> half, node.high)
        )
        middle += low >> half
        return ExactSum((low & mask) + ((middle & mask) << half), high + (middle >> half))

    return jax.tree_util.tree_map(over_axis, sums, is_leaf=is_exact)


def why_impossible(sums: Params, vectors: int) -> str | None:
    """Say why a tree that came from elsewhere is not the sum of so many vectors; None where it may be.

    Args:
      sums: an `ExactSum` in place of each array, as `normalized` leaves them.
      vectors: how many were added, each no longer than the clip norm.
    """
    leaves = jax.tree_util.tree_leaves(sums, is_leaf=is_exact)
    parts = [(np.asarray(one.low), np.asarray(one.high)) for one in leaves if one.low.size]
    least, most = min(int(low.min()) for low, _ in parts), max(int(low.max()) for low, _ in parts)
    if least < 0 or most >= 1 << _LOW_BITS:
        return f"low numbers from {least} to {most}, but they must lie between 0 and {(1 << _LOW_BITS) - 1}"
    squares = [np.sum((high * 2.0**_LOW_BITS + low) ** 2) for low, high in parts]
    steps = math.sqrt(math.fsum(squares))
    # The clip norm is below twice its power of two, which is so many steps.
    length = vectors * 2.0 ** (grid_shift(sum(low.size for low, _ in parts)) + 1)
    if steps > length * (1 + 1e-9):
        return f"an L2 norm of {steps:.6g} steps, but {vectors} clipped updates have {length:.6g} at most"
    return None


def like_of(sums: Params) -> Params:
    """Give shapes, float32, of the vectors whose sum a tree is; other arrays count for themselves."""

    def shape(node: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((node.low if is_exact(node) else node).shape, jnp.float32)

    return jax.tree_util.tree_map(shape, sums, is_leaf=is_exact)


def as_float64(sums: Params) -> Params:
    """Give the integers as float64 arrays, exactly; to be traced where JAX's 64-bit types are enabled."""

    def value(node: ExactSum) -> jax.Array:
        return node.high.astype(jnp.float64) * 2.0**_LOW_BITS + node.low.astype(jnp.float64)

    return jax.tree_util.tree_map(value, sums, is_leaf=is_exact)
