"""What is reported of a model: perplexity and accuracy, by exactly which targets they count."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from models.base import Batch, Model, Params, weigh_examples
from models.losses import ExampleSums

DEFINITIONS = {
    "loss": "cross-entropy in nats per target token; PAD targets are left out",
    "perplexity": "exp of the cross-entropy per target token; PAD and EOS targets are left out",
    "accuracy": "share of targets that have the highest logit; PAD and EOS targets are left out, OOV targets count",
    "in_vocabulary_accuracy": "the same with OOV targets left out too",
}


class Scores(NamedTuple):
    """A model's scores on some examples, as `DEFINITIONS` says; NaN where there is no target to count.

    Attributes:
      loss: nats per token.
      perplexity: of the next token.
      accuracy: of the most likely token.
      in_vocabulary_accuracy: the same over targets that are not OOV.
    """

    loss: float
    perplexity: float
    accuracy: float
    in_vocabulary_accuracy: float


def evaluate(model: Model, params: Params, batches: Iterable[Batch]) -> Scores:
    """Score a model.

    Args:
      model: the model.
      params: its parameters.
      batches: examples, all batches of one shape; rows of weight 0 count for nothing.

    Returns:
      The scores. Sums over batches are kept in float64.
    """
    sums = [_weighted_sums(model, params, batch) for batch in batches]
    totals = [np.concatenate(column).sum(dtype=np.float64) for column in zip(*jax.device_get(sums), strict=True)]
    return scores_from_totals(ExampleSums(*totals)) if totals else Scores(*[float("nan")] * 4)


def scores_from_totals(totals: ExampleSums) -> Scores:
    """Turn sums over all examples into scores.

    Args:
      totals: scalars.

    Returns:
      The scores.
    """

    def ratio(part: Any, whole: Any) -> float:
        return float(part) / float(whole) if whole > 0 else float("nan")

    with np.errstate(over="ignore"):
        perplexity = float(np.exp(ratio(totals.scored_loss, totals.scored_tokens)))
    return Scores(
        loss=ratio(totals.loss, totals.tokens),
        perplexity=perplexity,
        accuracy=ratio(totals.scored_correct, totals.scored_tokens),
        in_vocabulary_accuracy=ratio(totals.in_vocabulary_correct, totals.in_vocabulary_tokens),
    )


@functools.partial(jax.jit, static_argnums=0)
def _weighted_sums(model: Model, params: Params, batch: Batch) -> ExampleSums:
    # Sums stay per example: where the batch is spread over devices, none has to wait for another.
    return weigh_examples(model.loss(params, batch), batch)
