"""Gradients of large matrices, made of one unit at a time: each for its norm, and to be added to the sum at once.

So there is neither an array of the matrix's size for every unit, nor products of all positions with each other. What a
unit's gradient is multiplied by follows from the norms of all of its gradients, so that these matrices come last.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.layers.matrix_products import sum_of_outer_products


class OneByOne(NamedTuple):
    """The gradients of a matrix, of all units.

    Attributes:
      factors: of each use, rows and columns: a gradient is the sum over positions of `rows_s columns_s^T`. Rows are
        float [units, positions, rows of the matrix], or int [units, positions], the one row that is 1; columns are
        float [units, positions, columns of the matrix].
      shape: of the matrix.
    """

    factors: Sequence[tuple[jax.Array, jax.Array]]
    shape: tuple[int, ...]

    @property
    def turned(self) -> bool:
        """Whether gradients are made with rows and columns exchanged: a CPU takes less time to multiply into few wide
        rows than into many short ones."""
        return self.shape[0] > self.shape[1]

    def of_unit(self, unit: jax.Array) -> jax.Array:
        """Make the gradient of a unit, float32."""
        total = jnp.zeros(())
        # Look-ups last, since they can be added in place.
        for factors in sorted(self.factors, key=lambda one: one[0].ndim, reverse=True):
            rows, columns = (jax.lax.dynamic_index_in_dim(part, unit, keepdims=False) for part in factors)
            if rows.ndim == 1:
                total = jnp.broadcast_to(total, self.shape[::-1] if self.turned else self.shape)
                columns = columns.astype(jnp.float32)
                total = total.at[:, rows].add(columns.T) if self.turned else total.at[rows].add(columns)
            else:
                few, many = (columns, rows) if self.turned else (rows, columns)
                total = total + sum_of_outer_products(few, many, jnp.float32, exact=True)
        # Made once, for the norm and for the sum.
        return jax.lax.optimization_barrier(total)


def add_one_by_one(
    gradients: dict[int, OneByOne], bounds: jax.Array, factors_of: Callable[[jax.Array], jax.Array]
) -> tuple[dict[int, jax.Array], jax.Array]:
    """Sum clipped gradients; one that is not finite contributes 0.

    Args:
      gradients: by numbers of parameter arrays.
      bounds: float32 [parameter arrays, units], of the squared norms of all other gradients.
      factors_of: maps bounds of squared norms [parameter arrays, 1] to what gradients are multiplied by.

    Returns:
      The sums, float32, by numbers of parameter arrays, and the bounds with the squared norms of these.
    """
    if not gradients:
        return {}, bounds

    def add(unit: jax.Array, found: tuple[dict, jax.Array]) -> tuple[dict, jax.Array]:
        sums, bounds = found
        of_unit = {number: one.of_unit(unit) for number, one in gradients.items()}
        for number, one in of_unit.items():
            bounds = bounds.at[number, unit].set(sum_of_squares(one))
        factors = factors_of(jax.lax.dynamic_slice_in_dim(bounds, unit, 1, axis=1))[:, 0]
        sums = {number: sums[number] + scaled(factors[number], one) for number, one in of_unit.items()}
        return sums, bounds

    nothing = {number: jnp.zeros(one.shape[::-1] if one.turned else one.shape) for number, one in gradients.items()}
    sums, bounds = jax.lax.fori_loop(0, bounds.shape[1], add, (nothing, bounds))
    return {number: total.T if gradients[number].turned else total for number, total in sums.items()}, bounds


def sum_of_squares(array: jax.Array) -> jax.Array:
    """Add the squares of a unit's gradient up, float32."""
    # Of many short axes in one reduction, squares would be added one after another, and the sum comes out too small.
    rows = array.reshape(-1, max((*array.shape[-1:], 1)))
    return jnp.sum(jax.lax.optimization_barrier(jnp.sum(jnp.square(rows), axis=1)))


def scaled(factor: jax.Array, gradient: jax.Array) -> jax.Array:
    """Multiply a unit's gradient by its factor; one that is not finite has a factor of 0, and becomes 0."""
    return jnp.where(factor > 0, factor * gradient, 0.0)
