"""From a device's examples to the batches of a round, as docs/protocol.md says it for all languages."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .manifest import Batches

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_MOST_ROWS = 1 << 24  # of a round, in memory at once
_Words = NDArray[np.uint32]


class RoundSeed(NamedTuple):
    """What the chance of a client's round follows from."""

    seed: int
    number: int  # of the round
    client: int  # its index


def threefry(key: tuple[int, int], counters: _Words) -> tuple[_Words, _Words]:
    """Compute Threefry-2x32 with 20 rounds (Salmon et al. 2011) of the pairs (0, counter), uint32 [n] each."""
    keys = [np.uint32(one) for one in (*key, key[0] ^ key[1] ^ 0x1BD11BDA)]
    a, b = np.full_like(counters, keys[0]), counters + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            a = a + b
            b = ((b << np.uint32(distance)) | (b >> np.uint32(32 - distance))) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def stream(seed: int, purpose: str, *numbers: int) -> tuple[int, int]:
    """Derive the key of a purpose, round, client, ... from a seed."""
    key = (0, seed)
    for number in (zlib.crc32(purpose.encode()), *numbers):
        a, b = threefry(key, np.array([number], np.uint32))
        key = (int(a[0]), int(b[0]))
    return key


def shuffled(count: int, key: tuple[int, int]) -> NDArray[np.intp]:
    """Order the numbers below a count by the words that a key gives them: the shuffle `threefry-sort`, version 1."""
    a, b = threefry(key, np.arange(count, dtype=np.uint32))
    return np.lexsort((b, a))


def batch_rows(count: int, batches: Batches, most: int, of_round: RoundSeed) -> NDArray[np.intp]:
    """Choose which of a device's examples make up each local step.

    Args:
      count: examples that the device has.
      batches: the plan's.
      most: local steps that the device takes at most.
      of_round: what chance follows from.

    Returns:
      int [steps, batch_size]; -1 where a batch is not filled.

    Raises:
      PlanError: they are too many to be made at once.
    """
    size, (seed, number, client) = batches.batch_size, of_round
    kept = count if batches.max_examples is None else min(count, batches.max_examples)
    per_epoch = kept if batches.batches_across_epochs else -(-kept // size) * size
    steps = min(-(-per_epoch * batches.epochs // size), batches.max_batches, most)
    if steps * size > _MOST_ROWS:
        raise PlanError(
            f"the plan asks for {steps} batches of {size} rows, but this client makes {_MOST_ROWS:,} rows at most"
        )
    rows = np.full((min(batches.epochs, -(-steps * size // max(per_epoch, 1))), per_epoch), -1, np.intp)
    among = kept if batches.cap_order == "cap_then_shuffle" else count
    for epoch, row in enumerate(rows):
        row[:kept] = shuffled(among, stream(seed, "shuffle", number, client, epoch))[:kept]
    filled = np.append(rows, np.full(-rows.size % size, -1, np.intp))
    return filled[: steps * size].reshape(steps, size)


def random_words(batches: Batches, of_round: RoundSeed, step: int) -> _Words:
    """Draw the words of a step's examples by which a model drops, uint32 [batch_size, 2]."""
    key = stream(of_round.seed, "dropout", of_round.number, of_round.client, step)
    return np.stack(threefry(key, np.arange(batches.batch_size, dtype=np.uint32)), axis=1)


def sequences_of(encoded: Sequence[Sequence[int]], batches: Batches) -> NDArray[np.int32]:
    """Make `[BOS] w1 .. wk [EOS]` of token ids, cut or padded, int32 [examples, length + 1]."""
    out = np.full((len(encoded), batches.length + 1), batches.pad, np.int32)
    for row, ids in zip(out, encoded, strict=True):
        whole = [batches.bos, *ids[: batches.length], batches.eos][: batches.length + 1]
        row[: len(whole)] = whole
    return out


def batch_of(sequences: NDArray[np.int32], rows: NDArray[np.intp], pad: int) -> tuple[NDArray, NDArray]:
    """Fetch a step's tokens, int32 [batch_size, length + 1], and weights, float32 [batch_size]."""
    real = rows >= 0
    tokens = np.where(real[:, None], sequences[np.maximum(rows, 0)], pad)
    return tokens.astype(np.int32), real.astype(np.float32)
