"""Sums of clipped gradients, by three methods that give the same.

| method        | gradients of single units                       | passes                          |
| ------------- | ----------------------------------------------- | ------------------------------- |
| `vmap`        | all of them, as arrays                          | one forward, one backward       |
| `ghost`       | only their norms; output gradients made twice   | one forward, two backward       |
| `bookkeeping` | only their norms; output gradients are kept     | one forward, one backward       |

`ghost` is the method of Li et al. 2022, "Large language models can be strong differentially private learners", and
`bookkeeping` that of Bu et al. 2023, "Differentially private optimization on large model at small cost".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.fl_core.clipping.clip_functions import CLIP_FUNCTIONS, ClipName, clip_factors
from fedlm.fl_core.clipping.factored_gradients import gradients_of
from fedlm.fl_core.clipping.one_by_one import OneByOne, add_one_by_one, scaled, sum_of_squares
from fedlm.fl_core.clipping.unit_gradients import Gradient
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.exact_sums import LEAST_CLIP_NORM, MOST_CLIP_NORM
from fedlm.models.base import Model, Params, given_frozen, weigh_examples
from fedlm.models.layers.parameter_uses import UnrecordedUseError, record_uses
from fedlm.models.losses import ExampleSums

MethodName = Literal["vmap", "ghost", "bookkeeping"]


@dataclass(frozen=True)
class Clipping:
    """How the gradients of units are clipped.

    Attributes:
      method: how clipped sums are computed; all give the same.
      clip_norm: C, the longest that a clipped gradient may be.
      function: a key of `CLIP_FUNCTIONS`.
    """

    method: MethodName
    clip_norm: float
    function: ClipName = "constant"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigurationError(
                f"{setting('clipping')} is {self.method!r}, but must be one of {', '.join(METHODS)}"
            )
        if self.function not in CLIP_FUNCTIONS:
            raise ConfigurationError(
                f"{setting('clip_function')} is {self.function!r}, but must be one of {', '.join(CLIP_FUNCTIONS)}"
            )
        if not LEAST_CLIP_NORM <= self.clip_norm <= MOST_CLIP_NORM:
            raise ConfigurationError(
                f"{setting('clip_norm')} is {self.clip_norm}, but must lie between {LEAST_CLIP_NORM:g} and "
                f"{MOST_CLIP_NORM:g}"
            )


class ClippedSum(NamedTuple):
    """A sum of clipped gradients, and what is known of its terms.

    Attributes:
      gradient: the sum, float32, of the parameters' structure.
      norms: float32 [units], before clipping; not finite where the gradient is not.
      factors: float32 [parameter arrays, units], what gradients were multiplied by.
      sums: what the loss is made of, [units] each.
    """

    gradient: Params
    norms: jax.Array
    factors: jax.Array
    sums: ExampleSums


def clipped_sum(clipping: Clipping, model: Model, params: Params, batch: Any, *, units: int) -> ClippedSum:
    """Sum the clipped gradients of units; one that is not finite contributes 0.

    The loss of a unit is the mean over all non-PAD targets of its examples.

    Args:
      clipping: how.
      model: any model for `vmap`; for the others one that uses parameters by `fedlm.models.layers.basic` alone.
      params: its parameters.
      batch: what the model's loss takes, with a `weight`; each unit has the same number of consecutive examples.
      units: how many there are.

    Raises:
      UnrecordedUseError: the model uses a parameter in another way, and the method is not `vmap`.
    """
    return METHODS[clipping.method](clipping, model, params, batch, units=units)


def method_for(
    method: MethodName, model: Model, params: Params, batch: Any, *, frozen: Params = ()
) -> tuple[MethodName, str | None]:
    """Find out whether a method can be used for a model, of whose parameters and batches the shapes are enough.

    Returns:
      The method, or `vmap` where the model does not allow it; and the reason, None where it does.
    """
    if method == "vmap":
        return method, None
    try:
        jax.eval_shape(
            lambda params, batch, frozen: record_uses(given_frozen(model, frozen).loss, params, batch).result,
            params,
            batch,
            frozen,
        )
    except UnrecordedUseError as error:
        return "vmap", (
            f"{method} clipping needs a model whose layers are fedlm.models.layers', but in {model.name} {error}; "
            "clipping by vmap instead, which is slower"
        )
    return method, None


def unit_sums(sums: ExampleSums, batch: Any, units: int) -> ExampleSums:
    """Add up what the model's loss gave for the examples of each unit, weighed: float32 [units] each."""
    return ExampleSums(*(values.reshape(units, -1).sum(axis=1) for values in weigh_examples(sums, batch)))


def _by_vmap(setting: Clipping, model: Model, params: Params, batch: Any, *, units: int) -> ClippedSum:
    def loss(params: Params, unit: Any) -> tuple[jax.Array, ExampleSums]:
        sums = ExampleSums(*(values[0] for values in unit_sums(model.loss(params, unit), unit, 1)))
        return sums.loss / jnp.maximum(sums.tokens, 1.0), sums

    by_unit = jax.tree_util.tree_map(lambda leaf: leaf.reshape(units, -1, *leaf.shape[1:]), batch)
    gradients, sums = jax.vmap(jax.grad(loss, has_aux=True), (None, 0))(params, by_unit)
    # Made once, for the norms and for the sum.
    leaves, structure = jax.tree_util.tree_flatten(jax.lax.optimization_barrier(gradients))
    leaves = [leaf.astype(jnp.float32) for leaf in leaves]
    squared = jnp.stack([jax.vmap(sum_of_squares)(leaf) for leaf in leaves])
    factors = clip_factors(setting.function, squared, setting.clip_norm)
    total = [
        jax.lax.platform_dependent(of_units, leaf, cpu=_added_in_turn, default=_added_at_once)
        for of_units, leaf in zip(factors, leaves, strict=True)
    ]
    gradient = jax.tree_util.tree_unflatten(structure, total)
    return ClippedSum(gradient, jnp.sqrt(jnp.sum(squared, axis=0)), factors, sums)


def _added_in_turn(factors: jax.Array, gradients: jax.Array) -> jax.Array:
    """Add gradients [units, ...] up, multiplied by factors [units], one after another: a reduction over the first axis
    of large arrays takes CPUs several times as long."""

    def add(unit: jax.Array, total: jax.Array) -> jax.Array:
        return total + scaled(factors[unit], gradients[unit])

    return jax.lax.fori_loop(0, len(factors), add, jnp.zeros(gradients.shape[1:], jnp.float32))


def _added_at_once(factors: jax.Array, gradients: jax.Array) -> jax.Array:
    return jnp.sum(jax.vmap(scaled)(factors, gradients), axis=0)


def _by_uses(setting: Clipping, model: Model, params: Params, batch: Any, *, units: int, keep: bool) -> ClippedSum:
    leaves, structure = jax.tree_util.tree_flatten(params)
    shapes = [leaf.shape for leaf in leaves]
    run = record_uses(model.loss, params, batch)
    sums = unit_sums(run.result, batch, units)
    shares = batch.weight.reshape(units, -1) / jnp.maximum(sums.tokens, 1.0)[:, None]
    at_sums = jax.tree_util.tree_map(jnp.zeros_like, run.result)._replace(loss=shares.reshape(-1))

    def gradients(at_sums: ExampleSums) -> list[Gradient | None]:
        return gradients_of(run.uses, run.output_gradients(at_sums), shapes, units, platform=jax.default_backend())

    def factors_of(bounds: jax.Array) -> jax.Array:
        return clip_factors(setting.function, bounds, setting.clip_norm)

    found = gradients(at_sums)
    last = {number: one for number, one in enumerate(found) if isinstance(one, OneByOne)}
    # Profiles of a step name these parts.
    with jax.named_scope("norms"):
        norms = [
            (jnp.zeros(units),) * 2 if one is None or isinstance(one, OneByOne) else one.squared_norms()
            for one in found
        ]
        squared, bounds = (jnp.stack(of_all) for of_all in zip(*norms, strict=True))
        sums_of_last, bounds = add_one_by_one(last, bounds, factors_of)
    for number in last:
        squared = squared.at[number].set(bounds[number])
    factors = factors_of(bounds)
    if not keep:
        # The compiler must not see that the second pass repeats the first, whose results it would keep.
        at_sums, factors = jax.lax.optimization_barrier((at_sums, factors))
        found = gradients(at_sums)
    total = []
    for number, (one, shape) in enumerate(zip(found, shapes, strict=True)):
        if one is None:
            total.append(jnp.zeros(shape, jnp.float32))
        elif isinstance(one, OneByOne):
            total.append(sums_of_last[number])
        else:
            with jax.named_scope("weighted_sums"):
                total.append(one.weighted_sum(factors[number]))
    gradient = jax.tree_util.tree_unflatten(structure, total)
    return ClippedSum(gradient, jnp.sqrt(jnp.sum(squared, axis=0)), factors, sums)


METHODS: dict[str, Callable[..., ClippedSum]] = {
    "vmap": _by_vmap,
    "ghost": partial(_by_uses, keep=False),
    "bookkeeping": partial(_by_uses, keep=True),
}
"""From names to methods: each takes the arguments of `clipped_sum`."""
