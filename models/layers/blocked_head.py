"""The output layer and its cross-entropy without all logits in memory at once.

The logits of one sequence of 1,024 positions over 256,000 tokens are 1.05 GB. Here they are made for a block of tokens
after the other, in float32, and made again for gradients: with the logarithm of a position's normaliser, and the
gradient at its loss, any block of the gradient at the logits is known. Blocks are of tokens, not of positions, so that
each row of the table's gradient is written once, and the gradient of one example is known row by row.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.layers.basic import soft_cap
from fedlm.models.layers.matrix_products import sum_of_outer_products
from fedlm.models.layers.parameter_uses import Parameter, Recorded, with_tap

MOST_LOGITS = 2**27
"""Logits that are made all at once, at most."""
BLOCK = 2**24
"""Numbers of one block, about."""
_LEAST = 256


def needs_blocks(positions: int, vocabulary: int) -> bool:
    """Say whether logits of so many positions are too many to be made at once."""
    return positions * vocabulary > MOST_LOGITS


class Blocks(NamedTuple):
    """Blocks of tokens, all equally large; the last overlaps the one before where they do not divide the vocabulary."""

    vocabulary: int
    size: int

    @classmethod
    def of(cls, vocabulary: int, rows: int) -> "Blocks":
        """Make blocks of which one, for so many rows each, has about `BLOCK` numbers."""
        return cls(vocabulary, min(vocabulary, max(_LEAST, BLOCK // rows)))

    @property
    def steps(self) -> int:
        """How many there are."""
        return -(-self.vocabulary // self.size)

    def start(self, number: jax.Array) -> jax.Array:
        """Say with which token a block begins."""
        return jnp.minimum(number * self.size, self.vocabulary - self.size)

    def ids(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        """List a block's tokens, int [size], and which of them no block before it has."""
        ids = self.start(number) + jnp.arange(self.size)
        return ids, ids >= number * self.size


_Output = tuple[jax.Array, jax.Array | None]  # table and bias


@dataclass(frozen=True)
class Scoring:
    """How targets were scored.

    Attributes:
      x: float [..., width].
      table: float [vocabulary, width].
      bias: float [vocabulary], or None.
      targets: int [...].
      log_normalizer: float32 [...], of the softmax.
      cap: of the logits, or None.
    """

    x: jax.Array
    table: jax.Array
    bias: jax.Array | None
    targets: jax.Array
    log_normalizer: jax.Array
    cap: float | None

    def logit_gradients(self, gradient: jax.Array, blocks: Blocks, number: jax.Array) -> jax.Array:
        """Make a block of the gradient at what the table gives, float32 [..., size], of that at the losses [...]."""
        ids, _ = blocks.ids(number)
        logits = _logits(self.x, _part((self.table, self.bias), blocks, number), self.cap)
        errors = jnp.exp(logits - self.log_normalizer[..., None]) - (ids == self.targets[..., None])
        if self.cap is not None:
            errors = errors * (1 - jnp.square(logits / self.cap))
        return errors * gradient[..., None]


# The JAX of other frameworks (docs/interop.md) has no register_dataclass yet.
jax.tree_util.register_pytree_node(
    Scoring,
    lambda scoring: ((scoring.x, scoring.table, scoring.bias, scoring.targets, scoring.log_normalizer), scoring.cap),
    lambda cap, arrays: Scoring(*arrays, cap),
)


def _logits(x: jax.Array, output: _Output, cap: float | None) -> jax.Array:
    """Make a block of logits, float32 [..., size], of its part of the output layer."""
    table, bias = output
    # Not rounded to the model's type, and a product by itself: what is made twice, of blocks of one size, must be the
    # same, whatever it is used for.
    products = jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)
    logits = jax.lax.optimization_barrier(products)
    return soft_cap(logits if bias is None else logits + bias, cap)


def _part(output: _Output, blocks: Blocks, number: jax.Array) -> _Output:
    table, bias = output
    return _slice(table, blocks, number), None if bias is None else _slice(bias, blocks, number)


def _slice(array: jax.Array, blocks: Blocks, number: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, blocks.start(number), blocks.size)


def in_place(total: jax.Array, part: jax.Array, blocks: Blocks, number: jax.Array) -> jax.Array:
    """Put a block's rows [size, ...] into an array of all [vocabulary, ...]; those that two blocks have are equal."""
    return jax.lax.dynamic_update_slice_in_dim(total, part.astype(total.dtype), blocks.start(number), 0)


class _Form(NamedTuple):
    cap: float | None
    with_parameters: bool  # whether the output layer is trained here


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(form: _Form, x: jax.Array, output: _Output, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute losses float32 [...], whether targets have the highest logit bool [...], and log-normalisers."""
    return _forward(form, x, output, targets)[0]


def _forward(
    form: _Form, x: jax.Array, output: _Output, targets: jax.Array
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], Scoring]:
    blocks = Blocks.of(len(output[0]), targets.size)

    def add(number: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        highest, total, before, of_target = found
        ids, own = blocks.ids(number)
        logits = jnp.where(own, _logits(x, _part(output, blocks, number), form.cap), -jnp.inf)
        higher = jnp.maximum(highest, jnp.max(logits, axis=-1))
        total = total * jnp.exp(highest - higher) + jnp.sum(jnp.exp(logits - higher[..., None]), axis=-1)
        earlier = jnp.where(ids < targets[..., None], logits, -jnp.inf)
        picked = jnp.where((ids == targets[..., None]) & own, logits, 0.0)
        return higher, total, jnp.maximum(before, jnp.max(earlier, axis=-1)), of_target + jnp.sum(picked, axis=-1)

    zeros = jnp.zeros(targets.shape, jnp.float32)
    fresh = (zeros - jnp.inf, zeros, zeros - jnp.inf, zeros)
    highest, total, before, of_target = jax.lax.fori_loop(0, blocks.steps, add, fresh)
    log_normalizer = jnp.log(total) + highest
    correct = (of_target >= highest) & (of_target > before)
    scoring = Scoring(x, *output, targets, log_normalizer, form.cap)
    return (log_normalizer - of_target, correct, log_normalizer), scoring


def _backward(form: _Form, scoring: Scoring, gradients: tuple) -> tuple:
    gradient, *_ = gradients
    x, table, bias = scoring.x, scoring.table, scoring.bias
    blocks = Blocks.of(len(table), scoring.targets.size)

    def add(number: jax.Array, found: tuple) -> tuple:
        x_gradient, table_gradient, bias_gradient = found
        _, own = blocks.ids(number)
        errors = scoring.logit_gradients(gradient, blocks, number)
        at_x = jnp.where(own, errors, 0.0).astype(table.dtype)
        part = _slice(table, blocks, number)
        x_gradient = x_gradient + jnp.einsum("...v,vd->...d", at_x, part, preferred_element_type=jnp.float32)
        if form.with_parameters:
            of_rows = sum_of_outer_products(errors.astype(x.dtype), x)
            table_gradient = in_place(table_gradient, of_rows, blocks, number)
            if bias is not None:
                of_rows = jnp.sum(errors, axis=tuple(range(errors.ndim - 1)))
                bias_gradient = in_place(bias_gradient, of_rows, blocks, number)
        return x_gradient, table_gradient, bias_gradient

    tables = (jnp.zeros_like(table), None if bias is None else jnp.zeros_like(bias))
    fresh = (jnp.zeros(x.shape, jnp.float32), *(tables if form.with_parameters else (None, None)))
    x_gradient, *found = jax.lax.fori_loop(0, blocks.steps, add, fresh)
    return x_gradient.astype(x.dtype), tuple(found) if form.with_parameters else tables, None


_scores.defvjp(_forward, _backward)


def blocked_cross_entropy(
    x: jax.Array, table: Parameter, bias: Parameter | None, targets: jax.Array, *, cap: float | None
) -> tuple[jax.Array, jax.Array]:
    """Compute the cross-entropy of targets under logits `soft_cap(x @ table.T + bias, cap)`, block by block.

    Args:
      x: float [examples, ..., width].
      table: float [vocabulary, width].
      bias: float [vocabulary], or None.
      targets: int [examples, ...].
      cap: of the logits, or None.

    Returns:
      Losses float32 [examples, ...] in nats, and bool [examples, ...]: whether a target is the first of the highest.
    """
    if not isinstance(table, Recorded):
        assert not isinstance(bias, Recorded)
        losses, correct, _ = _scores(_Form(cap, with_parameters=True), x, (table, bias), targets)
        return losses, correct
    values = table.value, bias.value if isinstance(bias, Recorded) else bias
    losses, correct, log_normalizer = _scores(_Form(cap, with_parameters=False), x, values, targets)
    scoring = Scoring(x, *values, targets, jax.lax.stop_gradient(log_normalizer), cap)
    shape = jax.ShapeDtypeStruct(losses.shape, losses.dtype)
    for parameter in (table, *((bias,) if isinstance(bias, Recorded) else ())):
        number, tap = table.recording.begin(parameter, "score", shape)
        table.recording.finish(number, scoring)
        losses = with_tap(losses, tap)
    return losses, correct
