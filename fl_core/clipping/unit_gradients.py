"""Norms and weighted sums of units' gradients.

What is added to a sum must not be longer than the clip norm, whatever precision the model computes in. Weights and what
they multiply are float32, and where the factors are not, their weighted side is two numbers of the factors' type, a
value and what that lacks. In the Gram form, where long products may cancel, the norm is computed from other numbers
than the sum; there the bound that `squared_norms` gives is above the norm of what is added by the rounding of both.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedlm.fl_core.clipping.one_by_one import OneByOne
from fedlm.models.layers.blocked_head import Blocks, Scoring, in_place
from fedlm.models.layers.matrix_products import inner_product_error, inner_products, sum_of_outer_products

_ROUNDING = 2.0**-24  # of a number, to the nearest float32
_ADDED_IN_A_ROW = 64  # numbers that a reduction adds one after another, at most; more of them are added as trees
_SUM_ERROR = 2.0**-18  # of the squared sum of lengths: other rounding where inner products are multiplied and added up
_SCORE_ERROR = 2.0**-16  # of the sum of lengths: rounding of logits that are made once for norms and once for sums
_SPLIT_ERROR = 2.0**-17  # of the sum of lengths: rounding of bfloat16 factors in two parts
_LOST = float(jnp.finfo(jnp.float32).tiny)  # at most, of a product of two numbers that is too small for float32


class Factors(NamedTuple):
    """A use's part in the gradient of a matrix: the sum over positions of `rows_s columns_s^T`.

    Attributes:
      rows: float [units, positions, rows of the matrix], or int [units, positions]: the one row that is 1, others 0.
      columns: float [units, positions, columns of the matrix].
    """

    rows: jax.Array
    columns: jax.Array

    @property
    def one_hot(self) -> bool:
        """Whether `rows` are indices."""
        return self.rows.ndim == 2

    def length(self) -> jax.Array:
        """Add up the lengths of the outer products, float32 [units]."""
        columns = _lengths(self.columns)
        return jnp.sum(columns if self.one_hot else columns * _lengths(self.rows), axis=1)

    def products(self, other: "Factors") -> tuple[jax.Array, jax.Array]:
        """Multiply the rows, and the columns, of two uses by each other: float32 [units, positions, other's] each."""
        if self.one_hot and other.one_hot:
            rows = (self.rows[:, :, None] == other.rows[:, None, :]).astype(jnp.float32)
        elif self.one_hot:
            rows = _picked(other.rows, self.rows)
        elif other.one_hot:
            rows = jnp.swapaxes(_picked(self.rows, other.rows), 1, 2)
        else:
            rows = inner_products(self.rows, other.rows)
        return rows, inner_products(self.columns, other.columns)


class MatrixGradient(NamedTuple):
    """The gradients of a matrix, of all units.

    Attributes:
      factors: of each use.
      direct: float32 [units, rows, columns], the gradients themselves, where that is cheaper; else None.
      shape: of the matrix.
      turned: whether `direct` is [units, columns, rows].
    """

    factors: list[Factors]
    direct: jax.Array | None
    shape: tuple[int, ...]
    turned: bool = False

    def squared_norms(self) -> tuple[jax.Array, jax.Array]:
        """See `Gradient`."""
        if self.direct is not None:
            squared = jnp.sum(jnp.square(self.direct), axis=(1, 2))
            return squared, squared
        total, lost = jnp.zeros(()), [width * _LOST for width in self.shape]
        lengths: list[list[jax.Array]] = []
        for number, one in enumerate(self.factors):
            products = one.products(one)
            total = total + _sum_of_entries(*products)
            lengths.append(
                [_root(jnp.diagonal(ours, axis1=1, axis2=2), of) for ours, of in zip(products, lost, strict=True)]
            )
            for other in self.factors[:number]:
                total = total + 2 * _sum_of_entries(*one.products(other))
        # Rounding may leave a sum of large terms that cancel just below 0.
        squared = jnp.maximum(total, 0.0)
        rows, columns = (jnp.concatenate(of_all, axis=1) for of_all in zip(*lengths, strict=True))
        length = jnp.sum(rows * columns, axis=1)
        positions = rows.shape[1]
        added = 2 * positions + 2 * min(positions, _ADDED_IN_A_ROW)
        rounding = sum(map(inner_product_error, self.shape)) + _ROUNDING * added + _SUM_ERROR
        of_rows, of_columns = jnp.sum(rows, axis=1), jnp.sum(columns, axis=1)
        too_small = lost[0] * of_columns * of_columns + lost[1] * of_rows * of_rows
        low = any(jnp.dtype(one.columns.dtype).itemsize < 4 for one in self.factors)
        split = _SPLIT_ERROR * length if low else 0.0
        return squared, jnp.square(jnp.sqrt(squared + rounding * jnp.square(length) + too_small) + split)

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        """Sum the units' gradients by float32 weights [units]; where a weight is 0, the gradient may be anything."""
        if self.direct is not None:
            total = _of_kept_units(
                lambda weights, direct: einsum("u,urc->rc", weights, direct), weights, (self.direct,)
            )
            return total.T if self.turned else total
        return sum((_weighted_sum(one, weights, self.shape) for one in self.factors), start=jnp.zeros(()))


class VectorGradient(NamedTuple):
    """The gradients of a vector, of all units: float32 [units, width]."""

    direct: jax.Array

    def squared_norms(self) -> tuple[jax.Array, jax.Array]:
        """See `Gradient`."""
        squared = jnp.sum(jnp.square(self.direct), axis=1)
        return squared, squared

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        return einsum("u,uw->w", weights, _kept(self.direct, weights))


class ScoredGradient(NamedTuple):
    """The gradients of a table whose logits are never whole in memory: made block by block, for norms and for sums.

    Attributes:
      scorings: what the table was scored with, [units, positions, ...], and the gradients at the losses.
      factors: of its other uses.
      shape: of the table.
    """

    scorings: list[tuple[Scoring, jax.Array]]
    factors: list[Factors]
    shape: tuple[int, ...]

    @property
    def blocks(self) -> Blocks:
        """The same for norms and for sums: a product of another shape is rounded otherwise, and a large logit that is
        off by a little is another error."""
        units, positions, width = self.scorings[0][0].x.shape
        return Blocks.of(self.shape[0], units * max(positions, width))

    def squared_norms(self) -> tuple[jax.Array, jax.Array]:
        """See `Gradient`."""
        units, positions, width = self.scorings[0][0].x.shape
        blocks = self.blocks

        def add(number: jax.Array, found: tuple[jax.Array, list[jax.Array]]) -> tuple[jax.Array, list[jax.Array]]:
            total, of_errors = found
            ids, own = blocks.ids(number)
            block = jnp.zeros((units, blocks.size, width), jnp.float32)
            added = []
            for (scoring, gradient), so_far in zip(self.scorings, of_errors, strict=True):
                errors = scoring.logit_gradients(gradient, blocks, number)
                block = block + einsum("utv,utd->uvd", errors, scoring.x.astype(jnp.float32))
                added.append(so_far + jnp.sum(jnp.square(errors), axis=2))
            for one in self.factors:
                block = _add_rows(block, one, ids[0])
            return total + jnp.sum(jnp.where(own[:, None], jnp.square(block), 0.0), axis=(1, 2)), added

        none_yet = [jnp.zeros(gradient.shape) for _, gradient in self.scorings]
        squared, of_errors = jax.lax.fori_loop(0, blocks.steps, add, (jnp.zeros(units), none_yet))
        lost = self.shape[0] * _LOST
        length = sum(
            (
                jnp.sum(_root(errors, lost) * _lengths(scoring.x), axis=1)
                for (scoring, _), errors in zip(self.scorings, of_errors, strict=True)
            ),
            start=sum((one.length() for one in self.factors), start=jnp.zeros(())),
        )
        added = positions * len(self.scorings) + sum(one.columns.shape[1] for one in self.factors)
        # Outer products that cancel are added to those of other units, which they must not round to nothing.
        cancelled = _SUM_ERROR * jnp.square(length)
        errors = (_SCORE_ERROR + 2 * _ROUNDING * added) * length
        return squared, jnp.square(jnp.sqrt(squared + cancelled) + errors)

    def weighted_sum(self, weights: jax.Array) -> jax.Array:
        """Sum the units' gradients by float32 weights [units]; where a weight is 0, the gradient may be anything."""
        total = sum((_weighted_sum(one, weights, self.shape) for one in self.factors), start=jnp.zeros(()))
        for scoring, gradient in self.scorings:
            total = total + _weighted_scores(scoring, gradient, weights, self.blocks)
        return total


def _add_rows(block: jax.Array, factors: Factors, start: jax.Array) -> jax.Array:
    """Add a use's part to a block of rows of each unit's gradient, float32 [units, size, columns]."""
    size, columns = block.shape[1], factors.columns.astype(jnp.float32)
    if not factors.one_hot:
        rows = jax.lax.dynamic_slice_in_dim(factors.rows, start, size, axis=2)
        return block + einsum("usr,usc->urc", rows, columns)
    places = factors.rows - start
    # A place below 0 would be counted from the end.
    places = jnp.where((places >= 0) & (places < size), places, size)
    return block.at[jnp.arange(len(places))[:, None], places].add(columns, mode="drop")


def _weighted_scores(scoring: Scoring, gradient: jax.Array, weights: jax.Array, blocks: Blocks) -> jax.Array:
    x = _kept(scoring.x, weights).astype(jnp.float32)

    def add(number: jax.Array, total: jax.Array) -> jax.Array:
        errors = _kept(scoring.logit_gradients(gradient, blocks, number), weights) * weights[:, None, None]
        return in_place(total, sum_of_outer_products(errors, x, jnp.float32, exact=True), blocks, number)

    return jax.lax.fori_loop(0, blocks.steps, add, jnp.zeros((blocks.vocabulary, x.shape[-1]), jnp.float32))


Gradient = MatrixGradient | VectorGradient | ScoredGradient | OneByOne
"""All but `OneByOne` have `squared_norms`: the squared L2 norm of each unit's gradient, and a bound of the squared norm
of what the unit adds to a sum, divided by its weight, float32 [units] each."""


def rounded(values: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Round float32 values to those that another type has; they stay float32."""
    kind = jnp.finfo(dtype)
    # The compiler takes a cast there and back for nothing, but not this.
    return jax.lax.reduce_precision(values, kind.nexp, kind.nmant)


def _sum_of_entries(rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Multiply [units, ...] entry by entry and add up each unit's, float32 [units]."""
    # In one reduction, squares of 32 by 32 would be added one after another.
    return jnp.sum(jax.lax.optimization_barrier(jnp.sum(rows * columns, axis=2)), axis=1)


def _picked(dense: jax.Array, indices: jax.Array) -> jax.Array:
    """From [units, t, rows] and [units, s] to [units, s, t]: the entry that each index names."""
    picked = jnp.take_along_axis(dense, indices[:, None, :], axis=2)
    return jnp.swapaxes(picked, 1, 2).astype(jnp.float32)


def _weighted_sum(factors: Factors, weights: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    columns = _kept(factors.columns, weights)
    if factors.one_hot:
        weighted = columns.astype(jnp.float32) * weights[:, None, None]
        return jnp.zeros(shape, jnp.float32).at[factors.rows].add(weighted)
    if shape[0] < shape[1]:
        products = [(part, columns) for part in _weighted_parts(_kept(factors.rows, weights), weights)]
        return _sum_of_products(products)
    parts = _weighted_parts(columns, weights)
    return _of_kept_units(
        lambda _, rows, *parts: _sum_of_products([(rows, part) for part in parts]), weights, (factors.rows, *parts)
    )


def _of_kept_units(add_up: Callable[..., jax.Array], weights: jax.Array, arrays: tuple[jax.Array, ...]) -> jax.Array:
    """Sum over the units whose weight is not 0, by a function of weights [units] and large arrays [units, ...].

    It adds in the same order whether all units count or not: else one that does not would move the sum of the others.
    """

    def without_others(*arrays: jax.Array) -> jax.Array:
        # The barrier makes the product that follows the one that there is where all units count.
        return add_up(weights, *jax.lax.optimization_barrier([_kept(array, weights) for array in arrays]))

    # Hardly ever is a gradient not finite: no time is spent on copies without those that are not.
    return jax.lax.cond(jnp.all(weights > 0), lambda *arrays: add_up(weights, *arrays), without_others, *arrays)


def _sum_of_products(products: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
    return sum(
        (sum_of_outer_products(one, other, jnp.float32, exact=True) for one, other in products), start=jnp.zeros(())
    )


def _weighted_parts(values: jax.Array, weights: jax.Array) -> list[jax.Array]:
    """Multiply by weights in float32, and write the result as a sum of arrays of the values' type."""
    weighted = values.astype(jnp.float32) * weights[:, None, None]
    if values.dtype == jnp.float32:
        return [weighted]
    high = rounded(weighted, values.dtype)
    return [high.astype(values.dtype), (weighted - high).astype(values.dtype)]


def _lengths(vectors: jax.Array) -> jax.Array:
    return _root(jnp.sum(jnp.square(vectors.astype(jnp.float32)), axis=-1), vectors.shape[-1] * _LOST)


def _root(squared: jax.Array, lost: float) -> jax.Array:
    """Compute lengths that are not too short where squares were too small for float32."""
    return jnp.sqrt(squared + lost)


def _kept(values: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.where(weights.reshape(-1, *[1] * (values.ndim - 1)) > 0, values, 0)


def einsum(subscripts: str, one: jax.Array, other: jax.Array) -> jax.Array:
    """Multiply and sum in float32."""
    # A norm must hold whatever precision the model computes in.
    return jnp.einsum(subscripts, one, other, precision="highest", preferred_element_type=jnp.float32)
