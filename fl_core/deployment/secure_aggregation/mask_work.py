"""A server's longest work in a secure sum: streams of masks that come off, by all cores where they are many.

Their keys go to other processes by pipes alone.
"""

from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from fedlm.fedlm_client.secure_aggregation.masks import BLOCK, Words, add_mask
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.worker_processes import WorkerPool, cpu_cores

_LEAST_BYTES = 1 << 32
"""Of masks, from which on processes save more than their start costs: about a second of one core."""


class Stream(NamedTuple):
    """A mask in a sum."""

    key: bytes
    sign: int  # by which it comes off


class _Part(NamedTuple):
    first: int  # place of its first word in the sum
    words: Words
    streams: Sequence[Stream]


def take_off(total: Words, streams: Sequence[Stream]) -> None:
    """Take masks off a sum, in place, modulo what its words hold; each process has a part of the words."""
    workers = len(cpu_cores()) if len(streams) * total.nbytes >= _LEAST_BYTES else 1
    size = BLOCK * max(1, -(-len(total) // (workers * BLOCK)))
    parts = [_Part(first, total[first : first + size], streams) for first in range(0, len(total), size)]
    done = 0
    try:
        with WorkerPool(workers) as pool:
            for part, words in zip(parts, pool.map(_unmasked, parts), strict=True):
                part.words[:] = words
                done += 1
    except (BrokenProcessPool, OSError) as error:
        # A sum that may have been seen has no second attempt, so what others have not done is done here.
        warn("mask_processes_lost", why=str(error), parts_left=len(parts) - done)
    for part in parts[done:]:
        _unmasked(part)


def _unmasked(part: _Part) -> Words:
    for key, sign in part.streams:
        add_mask(part.words, key, sign, part.first)
    return part.words
