"""Masked language modelling: predict tokens of the input from both sides (Devlin et al. 2019, section 3.1)."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedlm.models.base import Model, Params, check_logits
from fedlm.models.losses import ExampleSums, cross_entropy, next_token_sums
from fedlm.models.pickling import made_by
from fedlm.models.special_tokens import OWN, SpecialTokens

_InitAndApply = tuple[Callable[[jax.Array], Params], Callable[[Params, jax.Array], jax.Array]]


class MaskedBatch(NamedTuple):
    """Masked token sequences that are trained on, or evaluated, together.

    Attributes:
      inputs: int32 [batch, length]; tokens, some of them replaced, most often by the mask's id; PAD where there
        is no token, which no position attends to.
      targets: int32 [batch, length]; the token to predict, PAD where nothing is predicted.
      weight: float32 [batch]; 1 for an example, 0 for a row that only fills the batch.
      dropout: uint32 [batch, 2], the key of each row's dropout; None where nothing is dropped.
    """

    inputs: jax.Array
    targets: jax.Array
    weight: jax.Array
    dropout: jax.Array | None = None


def mask_id(vocabulary_size: int) -> int:
    """Say which id stands for a masked token: the one after all `vocabulary_size` ids of the data."""
    return vocabulary_size


def masked_language_model(
    name: str,
    vocabulary_size: int,
    init: Callable[[jax.Array], Params],
    apply: Callable[[Params, jax.Array], jax.Array],
    *,
    special_tokens: SpecialTokens = OWN,
) -> Model:
    """Make a `Model` whose loss takes a `MaskedBatch` and is the cross-entropy of masked tokens.

    Args:
      name: the model's name.
      vocabulary_size: number of token ids of the data; the model has one more, `mask_id`.
      init: see `Model`.
      apply: see `Model`; the logits at a position may depend on all tokens of the row.
      special_tokens: see `Model`.
    """
    return made_by(_masked_language_model, name, vocabulary_size, (init, apply), special_tokens)


def _masked_language_model(
    name: str, vocabulary_size: int, functions: _InitAndApply, special_tokens: SpecialTokens
) -> Model:
    init, apply = functions

    def loss(params: Params, batch: MaskedBatch) -> ExampleSums:
        logits = apply(params, batch.inputs)
        check_logits(name, logits, (*batch.targets.shape, mask_id(vocabulary_size) + 1))
        return next_token_sums(cross_entropy(logits, batch.targets), logits, batch.targets, special_tokens)

    return Model(name, mask_id(vocabulary_size) + 1, init, apply, loss, "masked", special_tokens)
