"""How likely a causal model finds given continuations of given texts, for many of them at once."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from fedlm.fl_core.processes import from_first
from fedlm.models.base import Model, Params
from fedlm.models.layers.blocked_head import MOST_LOGITS
from fedlm.models.losses import cross_entropy
from fedlm.simulations.data.federated_data import rows_per_device

_SHORTEST = 32


class Continuation(NamedTuple):
    """Tokens, and those before them that a model is shown, BOS among them. There is at least one of each."""

    context: list[int]
    tokens: list[int]


class ContinuationScore(NamedTuple):
    """What a model says of a continuation."""

    log_likelihood: float  # in nats, of all its tokens
    is_greedy: bool  # whether each of them is the most likely one after those before it


def score_continuations(
    model: Model,
    params: Params,
    continuations: Sequence[Continuation],
    max_length: int,
    *,
    batch_size: int | None = None,
    observe: Callable[[int], None] = lambda scored: None,
) -> list[ContinuationScore]:
    """Score continuations, in batches of similar lengths.

    Inputs are padded at their end, which no earlier position sees, to powers of two, so that few programs are compiled.

    Args:
      model: a causal model.
      params: its parameters.
      continuations: what to score. Of too long a context the end is seen.
      max_length: tokens of an input, at most.
      batch_size: inputs that are scored together on each device; None for as many as its kind of device and the size
        of their logits suggest.
      observe: called with how many more are scored.
    """
    params = from_first(params)
    by_device = NamedSharding(Mesh(np.array(jax.devices()), "devices"), PartitionSpec("devices"))
    found: list[ContinuationScore | None] = [None] * len(continuations)
    for chosen, length in _batches(continuations, max_length, model.vocabulary_size, batch_size):
        shape = (_rows(length, model.vocabulary_size, batch_size), length)
        inputs, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for row, index in enumerate(chosen):
            tokens = _seen(continuations[index], max_length)
            inputs[row, : len(tokens) - 1], targets[row, : len(tokens) - 1] = tokens[:-1], tokens[1:]
        placed = jax.device_put((inputs, targets), by_device)
        losses, correct = map(np.asarray, _score(model, params, *placed))
        for row, index in enumerate(chosen):
            found[index] = _sum_up(continuations[index], max_length, losses[row], correct[row])
        observe(len(chosen))
    return [score for score in found if score is not None]


def is_cut(continuation: Continuation, max_length: int) -> bool:
    """Say whether the model does not see all of the context."""
    return len(continuation.context) + len(continuation.tokens) > max_length + 1


def _seen(continuation: Continuation, max_length: int) -> list[int]:
    return [*continuation.context, *continuation.tokens][-(max_length + 1) :]


def _batches(
    continuations: Sequence[Continuation], max_length: int, vocabulary_size: int, batch_size: int | None
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Divide continuations, the longest first: their indices, and the length that their inputs are padded to."""
    lengths = np.array([len(_seen(continuation, max_length)) - 1 for continuation in continuations], np.int64)
    padded = np.minimum(2 ** np.ceil(np.log2(np.maximum(lengths, _SHORTEST))).astype(np.int64), max_length)
    for length in np.unique(padded)[::-1]:
        (chosen,) = np.nonzero(padded == length)
        rows = _rows(int(length), vocabulary_size, batch_size)
        for start in range(0, len(chosen), rows):
            yield chosen[start : start + rows], int(length)


def _rows(length: int, vocabulary_size: int, batch_size: int | None) -> int:
    """Say how many inputs are scored together on all devices."""
    fitting = max(1, MOST_LOGITS // (length * vocabulary_size))
    return (batch_size or min(rows_per_device(), fitting)) * jax.device_count()


def _sum_up(
    continuation: Continuation, max_length: int, losses: NDArray[np.float32], correct: NDArray[np.bool_]
) -> ContinuationScore:
    end = len(_seen(continuation, max_length)) - 1
    own = slice(end - len(continuation.tokens), end)
    return ContinuationScore(-float(losses[own].sum(dtype=np.float64)), bool(correct[own].all()))


@functools.partial(jax.jit, static_argnums=0)
def _score(model: Model, params: Params, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return float32 [batch, length], the cross-entropy of each target, and bool [batch, length]: is it likeliest."""
    logits = model.apply(params, inputs)
    return cross_entropy(logits, targets), jnp.argmax(logits, axis=-1) == targets
