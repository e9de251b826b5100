"""Gathers units' gradients from what came into layers and the gradients at what came out.

The gradient of a matrix is a sum over positions s of outer products `row_s column_s^T`: of input and output gradient
for a dense layer, of the token's indicator and output gradient for an embedding. So with two uses of one matrix, or
one and itself, `<sum_s r_s c_s^T, sum_t r'_t c'_t^T> = sum_st <r_s, r'_t> <c_s, c'_t>`: the Gram form, which makes no
array of the matrix's size (Li et al. 2022, "Large language models can be strong differentially private learners"; for
tied embeddings "phantom clipping", DPFormer, arXiv 2305.17633). The direct form makes that array for each unit, all at
once or one by one. Each matrix takes the form that its shape makes cheapest.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedlm.fl_core.clipping.one_by_one import OneByOne
from fedlm.fl_core.clipping.unit_gradients import (
    Factors,
    Gradient,
    MatrixGradient,
    ScoredGradient,
    VectorGradient,
    einsum,
    rounded,
)
from fedlm.models.layers.blocked_head import Blocks, Scoring, in_place
from fedlm.models.layers.linear_head import Scores
from fedlm.models.layers.parameter_uses import Use

Form = Literal["gram", "direct", "one_by_one"]

COST_OF_AN_ENTRY = {"cpu": 40.0, "gpu": 700.0}
"""Arithmetic operations that take as long as to write and read an entry of a unit's gradient, by platform; accelerators
that are not here are taken for GPUs."""
CACHED_ENTRIES: dict[Form, int] = {"direct": 2**18, "one_by_one": 2**19}
FACTOR_BEYOND = 3.0
"""Larger gradients are out of a CPU's cache when they are read, and each entry takes so many times as long."""
COST_OF_ONE_MORE = {"cpu": 3e6, "gpu": math.inf}
"""Operations that take as long as what is beside that to make one unit's gradient after another, by platform."""


def gradients_of(
    uses: Sequence[Use],
    output_gradients: Sequence[jax.Array],
    shapes: Sequence[tuple[int, ...]],
    units: int,
    *,
    platform: str,
) -> list[Gradient | None]:
    """Gather what the uses of each parameter say about its gradients; None for a parameter that is not used.

    Args:
      uses: of all parameters.
      output_gradients: at each use's output.
      shapes: of the parameters.
      units: how many there are; each has the same number of consecutive examples.
      platform: where it runs, as JAX calls it.
    """
    by_parameter: dict[int, list[tuple[Use, jax.Array]]] = defaultdict(list)
    for use, gradient in zip(uses, output_gradients, strict=True):
        by_parameter[use.parameter].append((use, gradient))
    return [
        _gradient(by_parameter[number], shape, units, platform) if number in by_parameter else None
        for number, shape in enumerate(shapes)
    ]


def _gradient(found: list[tuple[Use, jax.Array]], shape: tuple[int, ...], units: int, platform: str) -> Gradient:
    if len(shape) == 1:
        vectors = sum(_vectors(use, gradient, units) for use, gradient in found)
        # Made once, for the norm and for the sum.
        return VectorGradient(jax.lax.optimization_barrier(vectors))
    in_blocks = [isinstance(use.inputs, Scoring) for use, _ in found]
    scorings = [
        _by_unit(use.inputs, gradient, units) for (use, gradient), one in zip(found, in_blocks, strict=True) if one
    ]
    factors = [
        _factors(use, gradient, units, shape[0])
        for (use, gradient), one in zip(found, in_blocks, strict=True)
        if not one
    ]
    if scorings:
        return ScoredGradient(scorings, factors, shape)
    form = _cheapest_form(factors, shape, platform)
    if form == "one_by_one":
        return OneByOne(factors, shape)
    if form == "gram":
        return MatrixGradient(factors, None, shape)
    # A CPU takes less time to multiply into wide rows than into long columns.
    turned = shape[0] > shape[1] and not any(one.one_hot for one in factors)
    direct = None
    # Look-ups last, since they can be added in place.
    for one in sorted(factors, key=lambda one: one.one_hot):
        direct = _add_direct(direct, Factors(one.columns, one.rows) if turned else one, shape)
    return MatrixGradient(factors, direct, shape, turned)


def _by_unit(scoring: Scoring, gradient: jax.Array, units: int) -> tuple[Scoring, jax.Array]:
    """Lay positions out as [units, positions]."""
    positions: dict[str, Any] = {
        "x": _of_its_type(scoring.x).reshape(units, -1, scoring.x.shape[-1]),
        "targets": scoring.targets.reshape(units, -1),
        "log_normalizer": scoring.log_normalizer.reshape(units, -1),
    }
    return dataclasses.replace(scoring, **positions), gradient.reshape(units, -1)


def _of_scored_bias(scoring: Scoring, gradient: jax.Array, width: int) -> jax.Array:
    blocks = Blocks.of(width, gradient.size)

    def add(number: jax.Array, total: jax.Array) -> jax.Array:
        part = jnp.sum(scoring.logit_gradients(gradient, blocks, number), axis=1)
        return in_place(total, part.T, blocks, number)

    return jax.lax.fori_loop(0, blocks.steps, add, jnp.zeros((width, len(gradient)), jnp.float32)).T


def _vectors(use: Use, gradient: jax.Array, units: int) -> jax.Array:
    if isinstance(use.inputs, Scores):
        errors = use.inputs.errors.reshape(units, -1, use.inputs.errors.shape[-1])
        return einsum("us,usw->uw", _share(use.inputs, gradient).reshape(units, -1), errors)
    if use.kind == "score":
        scoring, gradient = _by_unit(use.inputs, gradient, units)
        return _of_scored_bias(scoring, gradient, scoring.table.shape[0])
    entries = gradient if use.inputs is None else gradient * use.inputs
    return jnp.sum(entries.astype(jnp.float32).reshape(units, -1, entries.shape[-1]), axis=1)


def _share(scores: Scores, gradient: jax.Array) -> jax.Array:
    """Say what a position's errors are multiplied by for the gradient at its logits, [examples, ...]."""
    return (gradient / scores.normalizer).astype(scores.errors.dtype)


def _factors(use: Use, gradient: jax.Array, units: int, height: int) -> Factors:
    assert use.inputs is not None
    if isinstance(use.inputs, Scores):
        x, errors = use.inputs.x, _of_its_type(use.inputs.errors)
        columns = _of_its_type(x * _share(use.inputs, gradient)[..., None].astype(x.dtype))
        return Factors(errors.reshape(units, -1, errors.shape[-1]), columns.reshape(units, -1, x.shape[-1]))
    columns = _of_its_type(gradient).reshape(units, -1, gradient.shape[-1])
    if use.kind == "look_up":
        return Factors(_places(use.inputs.reshape(units, -1), height), columns)
    inputs = _of_its_type(use.inputs).reshape(units, -1, use.inputs.shape[-1])
    return Factors(columns, inputs) if use.kind == "multiply_transposed" else Factors(inputs, columns)


def _places(tokens: jax.Array, height: int) -> jax.Array:
    """Give each row of a matrix one number, as an index below 0 counts from the end; what is no row is its height."""
    places = jnp.where(tokens < 0, tokens + height, tokens)
    return jnp.where((places >= 0) & (places < height), places, height)


def _of_its_type(values: jax.Array) -> jax.Array:
    """Round to the type that values are of: the compiler may keep more of them where it makes a norm of them, and less
    where it makes a sum."""
    if values.dtype == jnp.float32:
        return values
    return rounded(values.astype(jnp.float32), values.dtype).astype(values.dtype)


def _cheapest_form(factors: list[Factors], shape: tuple[int, ...], platform: str) -> Form:
    gram = 0.0
    for number, one in enumerate(factors):
        for other in factors[: number + 1]:
            width = 1 if one.one_hot or other.one_hot else shape[0]
            gram += 2 * one.columns.shape[1] * other.columns.shape[1] * (width + shape[1])
    costs: dict[Form, float] = {"gram": gram}
    kind, entries = "cpu" if platform == "cpu" else "gpu", shape[0] * shape[1]
    for form, cached in CACHED_ENTRIES.items():
        beyond = FACTOR_BEYOND if kind == "cpu" and entries > cached else 1.0
        costs[form] = entries * beyond * COST_OF_AN_ENTRY[kind]
    costs["one_by_one"] += COST_OF_ONE_MORE[kind]
    return min(costs, key=lambda form: costs[form])


def _add_direct(total: jax.Array | None, factors: Factors, shape: tuple[int, ...]) -> jax.Array:
    if factors.one_hot:
        units = jnp.arange(len(factors.rows))[:, None]
        total = jnp.zeros((len(factors.rows), *shape), jnp.float32) if total is None else total
        return total.at[units, factors.rows].add(factors.columns.astype(jnp.float32))
    product = einsum("usr,usc->urc", factors.rows, factors.columns)
    return product if total is None else total + product
