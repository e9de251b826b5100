"""Language models whose output layer scores tokens by a table: logits and their cross-entropy in one.

For small batches most of a step's arithmetic is here. Differentiating loss and output layer together keeps softmax
probabilities out of every elementwise operation: exponentials are computed once, and what the softmax and the loss
multiply them by is applied to the narrow side of each matrix product.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.base import Batch, Decoder, Model, Params
from fedlm.models.layers.basic import ROWS, dense, logits_from_table, soft_cap
from fedlm.models.layers.blocked_head import blocked_cross_entropy, needs_blocks
from fedlm.models.layers.dropout import Drop, dropping
from fedlm.models.layers.matrix_products import sum_of_outer_products
from fedlm.models.layers.parameter_uses import Parameter, Recorded, with_tap
from fedlm.models.losses import ExampleSums, cross_entropy, next_token_sums, sums_over_targets, target_logits
from fedlm.models.special_tokens import OWN, SpecialTokens


def linear_head_model(
    name: str,
    vocabulary_size: int,
    *,
    init: Callable[[jax.Array], Params],
    features: Callable[[Params, jax.Array], jax.Array],
    head: Callable[[Params], tuple[Params, Parameter | None]],
    cap: float | None = None,
    special_tokens: SpecialTokens = OWN,
    decoder: Decoder | None = None,
    dropped_features: Callable[[Params, jax.Array, Drop], jax.Array] | None = None,
) -> Model:
    """Make a `Model` that scores tokens by a table, trained on the cross-entropy of the next token.

    Args:
      name: see `Model`, as for the next two.
      vocabulary_size: number of token ids.
      init: draws parameters.
      features: maps (params, int32 tokens [batch, length]) to float [batch, length, width].
      head: maps params to the output layer's table, as `init_embedding` makes it, and bias [vocabulary_size] or None;
        the bias may be constant.
      cap: of the logits, see `soft_cap`.
      special_tokens: see `Model`.
      decoder: how features are computed bit by bit: a `Decoder` that gives them, float [rows, width], for logits.
      dropped_features: computes `features`, dropping of activations; None for a model without dropout.
    """

    def apply(params: Params, tokens: jax.Array) -> jax.Array:
        return soft_cap(logits_from_table(*head(params), features(params, tokens)), cap)

    def loss(params: Params, batch: Batch, rate: float = 0.0) -> ExampleSums:
        targets, inputs, (table, bias) = batch.targets, batch.tokens[:, :-1], head(params)
        if rate and batch.dropout is not None and dropped_features is not None:
            x = dropped_features(params, inputs, dropping(rate, batch.dropout))
        else:
            x = features(params, inputs)
        if needs_blocks(targets.size, vocabulary_size):
            losses, correct = blocked_cross_entropy(x, table["table"], bias, targets, cap=cap)
            return sums_over_targets(losses, correct, targets, special_tokens)
        if cap is None and isinstance(table["table"], Recorded):
            losses, logits = recorded_cross_entropy(x, table["table"], bias, targets)
            return next_token_sums(losses, logits, targets, special_tokens)
        logits = soft_cap(logits_from_table(table, bias, x), cap)
        if isinstance(table["table"], Recorded):
            losses = _cross_entropy_of_kept_logits(logits, targets)
        elif cap is not None:
            losses = cross_entropy(logits, targets)
        else:
            losses = linear_cross_entropy(x, table["table"], bias, targets)
        return next_token_sums(losses, logits, targets, special_tokens)

    decoder = decoder and _with_logits(decoder, head, cap)
    model = Model(name, vocabulary_size, init, apply, loss, special_tokens=special_tokens, decoder=decoder)
    if dropped_features is None:
        return model
    return dataclasses.replace(
        model, with_dropout=lambda rate: dataclasses.replace(model, loss=functools.partial(loss, rate=rate))
    )


class _Prepared(NamedTuple):
    """Parameters, and the output layer's table as `dense` takes it."""

    params: Params
    output: Params


def _with_logits(
    decoder: Decoder, head: Callable[[Params], tuple[Params, Parameter | None]], cap: float | None
) -> Decoder:
    def prepare(params: Params) -> _Prepared:
        params = decoder.prepare(params)
        table, bias = head(params)
        output = {ROWS: table["table"]}
        return _Prepared(params, output if bias is None else output | {"bias": bias})

    def begin(prepared: _Prepared, rows: int, length: int) -> Any:
        return decoder.begin(prepared.params, rows, length)

    def read(prepared: _Prepared, state: Any, tokens: jax.Array, counts: jax.Array) -> tuple[jax.Array, Any]:
        x, state = decoder.read(prepared.params, state, tokens, counts)
        return soft_cap(dense(prepared.output, x), cap), state

    return decoder._replace(begin=begin, read=read, prepare=prepare)


@jax.custom_vjp
def linear_cross_entropy(x: jax.Array, table: jax.Array, bias: jax.Array | None, targets: jax.Array) -> jax.Array:
    """Compute the cross-entropy in float32 of each target under logits `x @ table.T + bias`.

    Args:
      x: float [..., width].
      table: float [vocabulary, width].
      bias: float [vocabulary], or None for none.
      targets: int [...].

    Returns:
      float32 [...], in nats.
    """
    return _forward(x, table, bias, targets)[0]


def _forward(x: jax.Array, table: jax.Array, bias: jax.Array | None, targets: jax.Array) -> tuple[jax.Array, tuple]:
    losses, softmax = _softmax_losses(logits_from_table({"table": table}, bias, x), targets)
    return losses, (x, table, bias, *softmax)


def _backward(residuals: tuple, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None, None]:
    x, table, bias, exponentials, normalizer, targets = residuals
    dtype = x.dtype
    # The gradient of a row's logits is share * exponentials - gradient * (1 at the target).
    share, gradient = (gradient / normalizer).astype(dtype)[..., None], gradient.astype(dtype)[..., None]
    x_gradient = share * (exponentials @ table) - gradient * table[targets]
    # Targets are added up in float32: few tokens have most of them, and no GPU adds narrow numbers up as fast.
    wide = jnp.promote_types(dtype, jnp.float32)
    at_targets = (-gradient * x).astype(wide)
    table_gradient = sum_of_outer_products(exponentials, share * x, wide).at[targets].add(at_targets)
    if bias is None:
        return x_gradient, table_gradient.astype(table.dtype), None, None
    summed = sum_of_outer_products(share, exponentials, wide)[0]
    bias_gradient = summed.at[targets].add(-gradient[..., 0].astype(wide))
    return x_gradient, table_gradient.astype(table.dtype), bias_gradient.astype(bias.dtype), None


linear_cross_entropy.defvjp(_forward, _backward)


class Scores(NamedTuple):
    """How targets were scored, with the gradient at the logits but for a factor of each position.

    Attributes:
      x: float [..., width].
      errors: float [..., vocabulary], the softmax less 1 at the target, times the normalizer.
      normalizer: float32 [...], of the softmax.
    """

    x: jax.Array
    errors: jax.Array
    normalizer: jax.Array


def recorded_cross_entropy(
    x: jax.Array, table: Recorded, bias: Parameter | None, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute what `linear_cross_entropy` does, recording that a table and a bias scored targets (`score`).

    Returns:
      Losses float32 [...] in nats, and the logits float [..., vocabulary], through which no gradient passes.
    """
    values = table.value, bias.value if isinstance(bias, Recorded) else bias
    losses, *kept = _recorded_losses(x, *values, targets)
    scores = Scores(x, *map(jax.lax.stop_gradient, kept))
    shape = jax.ShapeDtypeStruct(losses.shape, losses.dtype)
    for parameter in (table, *((bias,) if isinstance(bias, Recorded) else ())):
        number, tap = table.recording.begin(parameter, "score", shape)
        table.recording.finish(number, scores)
        losses = with_tap(losses, tap)
    return losses, jax.lax.stop_gradient(logits_from_table({"table": values[0]}, values[1], x))


@jax.custom_vjp
def _recorded_losses(
    x: jax.Array, table: jax.Array, bias: jax.Array | None, targets: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute losses, `Scores.errors` and normalizers; only x is differentiated by, and only the losses are."""
    return _recorded_forward(x, table, bias, targets)[0]


def _recorded_forward(
    x: jax.Array, table: jax.Array, bias: jax.Array | None, targets: jax.Array
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple]:
    losses, (exponentials, normalizer, _) = _softmax_losses(logits_from_table({"table": table}, bias, x), targets)
    flat, places = exponentials.reshape(-1, exponentials.shape[-1]), targets.reshape(-1)
    # Written in place, of as many numbers as there are targets.
    at_targets = target_logits(exponentials, targets) - normalizer
    errors = flat.at[jnp.arange(len(places)), places].set(at_targets.reshape(-1).astype(flat.dtype))
    errors = errors.reshape(exponentials.shape)
    return (losses, errors, normalizer), (errors, normalizer, table)


def _recorded_backward(residuals: tuple, gradients: tuple) -> tuple[jax.Array, None, None, None]:
    errors, normalizer, table = residuals
    share = (gradients[0] / normalizer).astype(errors.dtype)
    return share[..., None] * (errors @ table), None, None, None


_recorded_losses.defvjp(_recorded_forward, _recorded_backward)


@jax.custom_vjp
def _cross_entropy_of_kept_logits(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The cross-entropy for those who need the gradient at the logits as an array, and use it more than once."""
    return _softmax_losses(logits, targets)[0]


def _softmax_losses(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, tuple]:
    largest = jnp.max(logits, axis=-1, keepdims=True).astype(jnp.float32)
    exponentials = jnp.exp(logits.astype(jnp.float32) - largest)
    normalizer = jnp.sum(exponentials, axis=-1)
    losses = jnp.log(normalizer) + largest[..., 0] - target_logits(logits, targets)
    return losses, (exponentials.astype(logits.dtype), normalizer, targets)


def _backward_to_kept_logits(residuals: tuple, gradient: jax.Array) -> tuple[jax.Array, None]:
    exponentials, normalizer, targets = residuals
    is_target = jnp.arange(exponentials.shape[-1]) == targets[..., None]
    at_logits = exponentials * (gradient / normalizer)[..., None] - jnp.where(is_target, gradient[..., None], 0.0)
    # Without the barrier the compiler would make it anew for each use.
    return jax.lax.optimization_barrier(at_logits.astype(exponentials.dtype)), None


_cross_entropy_of_kept_logits.defvjp(_softmax_losses, _backward_to_kept_logits)
