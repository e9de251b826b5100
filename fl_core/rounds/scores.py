"""What is reported of a model: perplexity and accuracy, by exactly which targets they count."""

import functools
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.processes import gather_rows, own_rows
from fedlm.models.arguments import checked_arguments
from fedlm.models.base import Batch, Model, Params, weigh_examples
from fedlm.models.losses import ExampleSums

DEFINITIONS = {
    "loss": "cross-entropy in nats per target token; PAD targets are left out",
    "perplexity": "exp of the cross-entropy per target token; PAD and EOS targets are left out",
    "accuracy": "share of targets that have the highest logit; PAD and EOS targets are left out, OOV targets count",
    "in_vocabulary_accuracy": "the same with OOV targets left out too",
}


_IN_FLIGHT = 8


class Scores(NamedTuple):
    """A model's scores on some examples, as `DEFINITIONS` says; NaN where there is no target to count.

    Example:
      >>> scores = Scores(loss=2.0, perplexity=7.4, accuracy=0.25, in_vocabulary_accuracy=0.3)
      >>> scores.perplexity
      7.4
    """

    loss: float  # nats per token
    perplexity: float  # of the next token
    accuracy: float  # of the most likely token
    in_vocabulary_accuracy: float  # the same over targets that are not OOV


class ClientSums(NamedTuple):
    """Sums over the examples of each client that has any."""

    clients: np.ndarray  # int64 [clients], their indices, ascending
    examples: np.ndarray  # int64 [clients], how many examples of each were scored
    sums: ExampleSums  # float64 [clients] each


@checked_arguments
def evaluate(model: Model, params: Params, batches: Iterable[Batch]) -> Scores:
    """Score a model on batches of one shape, whose rows of weight 0 count for nothing; sums over batches are kept in
    float64.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedlm
      >>> init, apply = lambda key: jnp.zeros((6, 6)), lambda params, tokens: params[tokens]
      >>> model = fedlm.language_model("bigrams", 6, init, apply)
      >>> batch = Batch(tokens=jnp.array([[1, 4, 5, 2]]), weight=jnp.ones(1))
      >>> round(evaluate(model, model.init(jax.random.key(0)), [batch]).perplexity, 3)
      6.0
    """
    return scores_from_totals(_total(example_sums(model, params, batches)))


def evaluate_clients(
    model: Model, params: Params, batches: Iterable[Batch], owners: np.ndarray
) -> tuple[Scores, ClientSums]:
    """Score a model on all examples together as `evaluate` does, and on each client's, in one pass, given the client of
    every row of the batches in order, int [examples]; rows after these only fill the batch."""
    sums = example_sums(model, params, batches)
    return scores_from_totals(_total(sums)), sum_by_client(sums, owners)


def example_sums(model: Model, params: Params, batches: Iterable[Batch]) -> ExampleSums:
    """Run a model over batches and keep the sums of each example.

    Args:
      batches: as for `evaluate`.

    Returns:
      float32 [rows of all batches] each; 0 for a row of weight 0. Where several processes run, the batches are spread
      over the devices of all of them, each computes the sums of its own rows, and all get those of all rows.
    """
    done, running = [], deque[ExampleSums]()
    for batch in batches:
        running.append(_weighted_sums(model, params, batch))
        # Fetched with a delay, results keep the device busy, yet neither pile up on it nor run ahead of a progress bar.
        if len(running) > _IN_FLIGHT:
            done.append(own_rows(running.popleft()))
    done.extend(map(own_rows, running))
    if not done:
        return _sums([np.zeros(0, np.float32)] * len(ExampleSums._fields))
    return _sums(gather_rows(np.stack(column)).reshape(-1) for column in zip(*done, strict=True))


def sum_by_client(sums: ExampleSums, owners: np.ndarray) -> ClientSums:
    """Add the sums of each client's examples up, in float64, given the client of the first so many rows, int
    [examples]."""
    if len(owners) > len(sums.loss):
        raise ValueError(f"there are {len(sums.loss)} rows for {len(owners)} owners")
    clients, place, examples = np.unique(owners, return_inverse=True, return_counts=True)
    by_client = (np.bincount(place, np.asarray(column)[: len(owners)], len(clients)) for column in sums)
    return ClientSums(clients, examples, _sums(by_client))


def scores_from_totals(totals: ExampleSums) -> Scores:
    """Turn sums over all examples into scores."""
    return Scores(**{name: float(score) for name, score in scores_of_each(totals).items()})


def scores_of_each(totals: ExampleSums) -> dict[str, np.ndarray]:
    """Turn sums over the examples of many clients, [clients] each, into each one's scores: float64 [clients] by
    name."""

    def ratio(part: Any, whole: Any) -> np.ndarray:
        part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
        return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)

    with np.errstate(over="ignore"):
        perplexity = np.exp(ratio(totals.scored_loss, totals.scored_tokens))
    return {
        "loss": ratio(totals.loss, totals.tokens),
        "perplexity": perplexity,
        "accuracy": ratio(totals.scored_correct, totals.scored_tokens),
        "in_vocabulary_accuracy": ratio(totals.in_vocabulary_correct, totals.in_vocabulary_tokens),
    }


def _total(sums: ExampleSums) -> ExampleSums:
    return _sums(np.asarray(column).sum(dtype=np.float64) for column in sums)


def _sums(columns: Iterable[np.ndarray]) -> ExampleSums:
    return ExampleSums(*columns)  # type: ignore[arg-type]


@functools.partial(jax.jit, static_argnums=0)
def _weighted_sums(model: Model, params: Params, batch: Batch) -> ExampleSums:
    # Sums stay per example: where the batch is spread over devices, none has to wait for another.
    return weigh_examples(model.loss(params, batch), batch)
