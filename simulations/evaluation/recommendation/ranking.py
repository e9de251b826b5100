"""Ranking the items of a catalogue for users, a batch of users at a time."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from fedlm.fl_core.randomness import host_rng
from fedlm.models.base import Model, Params
from fedlm.models.decoding import decoder_of
from fedlm.models.special_tokens import OOV_ID, PAD_ID
from fedlm.simulations.data.federated_data import rows_per_device
from fedlm.simulations.data.store.client_split import ClientSplit
from fedlm.simulations.evaluation.recommendation.metrics import Places

FIRST_ITEM = OOV_ID + 1
"""The token of the first item; the ones before are special."""
_SCORES_BYTES = 1 << 28
"""The scores of a batch of users for all items may take so much memory on a device."""

_LEAST_WIDTH = 64
_AXIS = "devices"


class Scorer(NamedTuple):
    """What scores items for users.

    Attributes:
      score: maps (params, int32 tokens [users, length], BOS and a history padded with PAD, int32 counts [users] of what
        is no padding) to float32 scores [users, vocabulary] of what comes next.
      params: a pytree of arrays.
    """

    score: Callable[[Params, jax.Array, jax.Array], jax.Array]
    params: Params


class History(NamedTuple):
    """What is known of a user, and the item that comes next."""

    tokens: NDArray[np.int32]  # [length], BOS and the last items, padded with PAD
    read: int  # how many of the tokens are no padding
    known: NDArray[np.int64]  # [distinct items] of the whole history, sorted
    target: int  # the item that comes next


class Ranked(NamedTuple):
    """What was found of some users."""

    places: Places
    targets: NDArray[np.int64]  # [users], tokens of the items that come next
    top: NDArray[np.int32]  # [users, k], tokens of the best candidates, best first; PAD where there are fewer


def histories(split: ClientSplit, users: Sequence[int], length: int) -> Iterator[History]:
    """Yield what is known of users of heldout or test, of which a model reads `length` tokens."""
    for user in users:
        tokens = split.sequences(user, length)[0]
        items = split.client(user).example(0).astype(np.int64)
        count = min(len(items), length)  # of BOS and the items before the last, as far as they are read
        yield History(np.where(np.arange(length) < count, tokens[:-1], PAD_ID), count, np.unique(items[:-1]), items[-1])


def model_scorer(model: Model, params: Params) -> Scorer:
    """Make what scores items with a causal model."""
    decoder = decoder_of(model)

    def score(prepared: Params, tokens: jax.Array, counts: jax.Array) -> jax.Array:
        state = decoder.begin(prepared, len(tokens), tokens.shape[1])
        return decoder.read(prepared, state, tokens, counts)[0].astype(jnp.float32)

    return Scorer(score, jax.jit(decoder.prepare)(params))


def popularity_scorer(interactions: NDArray[np.integer]) -> Scorer:
    """Make what scores items by how often they occur, integer [vocabulary]: the same for everybody."""

    def score(scores: jax.Array, tokens: jax.Array, counts: jax.Array) -> jax.Array:
        return jnp.broadcast_to(scores, (len(tokens), len(scores)))

    return Scorer(score, interactions.astype(np.float32))


def rank_users(
    scorer: Scorer,
    split: ClientSplit,
    users: NDArray[np.integer],
    length: int,
    *,
    vocabulary_size: int,
    top_k: int,
    sampled_negatives: int | None = None,
    keep_history: bool = False,
    seed: int = 0,
    observe: Callable[[int, int], None] = lambda done, total: None,
) -> Ranked:
    """Rank items for users of heldout or test, and find where the item stands that each has met next.

    Candidates are all items, or the right one and others that are drawn uniformly, without replacement; those of the
    user's whole history are none, but for the right one, unless history is kept. A right item whose score is not finite
    stands last. Each device holds the scores of one batch of its own users.

    Args:
      scorer: what scores them.
      split: whose users they are.
      users: integer [users], their numbers.
      length: tokens that a model reads.
      vocabulary_size: items, and special tokens.
      top_k: how many of the best candidates among all items to return.
      sampled_negatives: how many other candidates to draw, fewer where there are fewer; None for all items.
      keep_history: whether items of the history are candidates.
      seed: of the draw, with the number of the user.
      observe: called with how many users are done, and how many there are.
    """
    mesh = Mesh(np.array(jax.local_devices()), _AXIS)
    rows = rows_at_once(vocabulary_size) * mesh.size
    params = jax.device_put(scorer.params, NamedSharding(mesh, PartitionSpec()))
    by_device = NamedSharding(mesh, PartitionSpec(_AXIS))
    waiting: deque[tuple[int, Any]] = deque()
    done: list[tuple[NDArray[Any], ...]] = []

    def collect() -> None:
        number, found = waiting.popleft()
        done.append(tuple(np.asarray(values)[:number] for values in found))
        observe(sum(len(part[0]) for part in done), len(users))

    for first in range(0, len(users), rows):
        some = users[first : first + rows].tolist()
        arrays = _arrays(
            split,
            some,
            length,
            vocabulary_size=vocabulary_size,
            sampled_negatives=sampled_negatives,
            keep_history=keep_history,
            seed=seed,
        )
        # Rows that only fill the last batch are those of its last user.
        filled = {name: np.pad(rows_of, ((0, rows - len(some)), (0, 0)), "edge") for name, rows_of in arrays.items()}
        found = _rank_batch(params, jax.device_put(filled, by_device), score=scorer.score, mesh=mesh, top_k=top_k)
        waiting.append((len(some), (*found, arrays["targets"][:, 0])))
        if len(waiting) > 1:  # so that the next batch is made while the devices compute
            collect()
    while waiting:
        collect()
    better, equal, candidates, top, targets = (np.concatenate(parts) for parts in zip(*done, strict=True))
    places = Places(*(values.astype(np.int64) for values in (better, equal, candidates)))
    return Ranked(places, targets.astype(np.int64), top)


def _arrays(
    split: ClientSplit,
    users: Sequence[int],
    length: int,
    *,
    vocabulary_size: int,
    sampled_negatives: int | None,
    keep_history: bool,
    seed: int,
) -> dict[str, NDArray[np.int32]]:
    """Make what is ranked of some users: the arguments of a scorer and of `_find_places`, each with a row a user."""
    batch = list(histories(split, users, length))
    hidden = [history.known[:0] if keep_history else history.known for history in batch]
    arrays = {
        "tokens": np.stack([history.tokens for history in batch]),
        "counts": np.array([[history.read] for history in batch], np.int32),
        "targets": np.array([[history.target] for history in batch], np.int32),
        "hidden": padded_rows(hidden),
    }
    if sampled_negatives is not None:
        excluded = [np.union1d(known, [history.target]) for known, history in zip(hidden, batch, strict=True)]
        drawn = [
            _negatives(items, vocabulary_size, sampled_negatives, seed=seed, user=user)
            for items, user in zip(excluded, users, strict=True)
        ]
        arrays["negatives"] = padded_rows(drawn, sampled_negatives)
    return arrays


def rows_at_once(vocabulary_size: int) -> int:
    """Say for how many users a device scores all items at once."""
    return max(1, min(rows_per_device(), _SCORES_BYTES // (4 * vocabulary_size)))


@partial(jax.jit, static_argnames="top_k")
def best_items(scores: jax.Array, hidden: jax.Array, top_k: int) -> tuple[jax.Array, jax.Array]:
    """Find the best items of each user; of those with equal scores the ones with the lower tokens.

    Args:
      scores: float32 [users, vocabulary].
      hidden: int32 [users, n], tokens that are no candidates, padded with PAD.
      top_k: how many, or all items where there are fewer.

    Returns:
      Their tokens, int32 [users, top_k], best first, and scores, float32; PAD where there is no other candidate with a
      score.
    """
    shown = jnp.where(_candidates(scores, hidden) & ~jnp.isnan(scores), scores, -jnp.inf)
    best, top = jax.lax.top_k(shown, min(top_k, scores.shape[1] - FIRST_ITEM))
    return jnp.where(jnp.isneginf(best), PAD_ID, top), best


def _candidates(scores: jax.Array, hidden: jax.Array) -> jax.Array:
    """Say which tokens are items that are not hidden, bool [users, vocabulary]."""
    items = jnp.broadcast_to(jnp.arange(scores.shape[1]) >= FIRST_ITEM, scores.shape)
    return items.at[jnp.arange(len(scores))[:, None], hidden].set(False)


@partial(jax.jit, static_argnames=("score", "mesh", "top_k"))
def _rank_batch(
    params: Params,
    arrays: dict[str, jax.Array],
    *,
    score: Callable[[Params, jax.Array, jax.Array], jax.Array],
    mesh: Mesh,
    top_k: int,
) -> tuple[jax.Array, ...]:
    """Rank a batch of users, each device its own: `_find_places` of `_arrays`."""

    def rank_rows(params: Params, arrays: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        others = {name: array for name, array in arrays.items() if name not in ("tokens", "counts")}
        return _find_places(score(params, arrays["tokens"], arrays["counts"][:, 0]), top_k=top_k, **others)

    return jax.shard_map(
        rank_rows,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(_AXIS)),
        out_specs=PartitionSpec(_AXIS),
        check_vma=False,
    )(params, arrays)


@partial(jax.jit, static_argnames="top_k")
def _find_places(
    scores: jax.Array, targets: jax.Array, hidden: jax.Array, negatives: jax.Array | None = None, *, top_k: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Rank a batch of users.

    Args:
      scores: float32 [users, vocabulary].
      targets: int32 [users, 1].
      hidden: int32 [users, n], tokens that are no candidates, but for the target; padded with PAD.
      negatives: int32 [users, n], the only other candidates, padded with PAD; None where all items are.
      top_k: see `Ranked.top`.

    Returns:
      int32 [users] thrice: how many score better and equal, and how many candidates there are; int32 [users, top_k].
    """
    candidate = _candidates(scores, hidden)
    score = jnp.take_along_axis(scores, targets, axis=1)
    top, _ = best_items(scores, hidden, top_k)
    others, among = scores, candidate & (jnp.arange(scores.shape[1]) != targets)
    if negatives is not None:
        others, among = jnp.take_along_axis(scores, negatives, axis=1), negatives != PAD_ID
    number = jnp.sum(among, axis=1)
    better = jnp.where(jnp.isfinite(score[:, 0]), jnp.sum(among & (others > score), axis=1), number)
    equal = jnp.where(jnp.isfinite(score[:, 0]), jnp.sum(among & (others == score), axis=1), 0)
    return better, equal, number + 1, top


def _negatives(
    excluded: NDArray[np.int64], vocabulary_size: int, number: int, *, seed: int, user: int
) -> NDArray[np.int64]:
    """Draw distinct items uniformly among those that are not excluded, int64 [number], or all where there are fewer.

    Args:
      excluded: int64 [excluded], tokens of items, sorted, each once.
    """
    left = vocabulary_size - FIRST_ITEM - len(excluded)
    rng = host_rng(seed, "negatives", user)
    drawn = rng.choice(left, min(number, left), replace=False, shuffle=False)
    # Of the items that are left, number i has as many excluded ones before it as begin at or before it.
    return FIRST_ITEM + drawn + np.searchsorted(excluded - FIRST_ITEM - np.arange(len(excluded)), drawn, side="right")


def padded_rows(rows: Sequence[NDArray[np.integer]], width: int | None = None) -> NDArray[np.int32]:
    """Lay rows of tokens out as int32 [rows, width], padded with PAD; where no width is given, a power of two
    that is wide enough, so that there are few shapes to compile for."""
    if width is None:
        width = max(_LEAST_WIDTH, 1 << (max(map(len, rows)) - 1).bit_length())
    padded = np.full((len(rows), width), PAD_ID, np.int32)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded
