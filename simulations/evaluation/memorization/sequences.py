"""Which sequences of a split a model is asked to continue: as the run cut them, and long enough."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.randomness import host_rng
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.pretraining.batches.privacy_units import Units

MAX_SEEN = 32_768
"""Sequences that are looked at, at most."""
USUAL = 50
"""The tokens of prefix and suffix where sequences are long enough (Carlini et al. 2023)."""
_BLOCK = 1024


class Lengths(NamedTuple):
    """How sequences are parted."""

    prefixes: tuple[int, ...]  # tokens that the model is shown, ascending; each is measured on the same sequences
    suffix: int  # tokens that it is to continue with

    @property
    def total(self) -> int:
        """Tokens that a sequence must have."""
        return self.prefixes[-1] + self.suffix


class Candidates:
    """Sequences of a split in a random order, which a seed of 0 or more chooses.

    `counts` is int64 [seen], the tokens of each, BOS and EOS among them.
    """

    def __init__(self, units: Units, seed: int):
        most = -(-MAX_SEEN // units.sequences_per_unit)
        rng = host_rng(seed, "memorization", *units.split.encode())
        self._units = units
        self._drawn = rng.choice(units.count, min(units.count, most), replace=False)
        blocks = (self._drawn[start : start + _BLOCK] for start in range(0, len(self._drawn), _BLOCK))
        tokens = np.concatenate([_token_counts(units, block) for block in blocks])
        self._rows, self._columns = np.nonzero(tokens)
        self.counts = tokens[self._rows, self._columns]

    def take(self, total: int, most: int) -> NDArray[np.int32]:
        """Return int32 [n, total], without PAD: the beginnings of at most so many sequences that have `total`
        tokens."""
        chosen = np.flatnonzero(self.counts >= total)[:most]
        found, _ = self._units.sequences(self._drawn[self._rows[chosen]])
        return found[np.arange(len(chosen)), self._columns[chosen], :total]


def _token_counts(units: Units, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    tokens, weight = units.sequences(indices)
    return np.where(weight > 0, (tokens != PAD_ID).sum(-1), 0)


def choose_lengths(
    counts: NDArray[np.int64], length: int, *, prefixes: tuple[int, ...], suffix: int | None, examples: int
) -> Lengths:
    """Settle how sequences of `counts` tokens, int64 [n], each at most `length + 1`, are parted.

    What is not given (no prefixes, no suffix) is as long as the wanted number of examples allows, or half of all where
    there are too few, but no longer than `USUAL`. Raises ConfigurationError where a length is out of range, DataError
    where no sequence is long enough.
    """
    enough = min(examples, math.ceil(len(counts) / 2))
    room = int(np.sort(counts)[-enough])
    if not prefixes and suffix is None:
        prefixes, suffix = (_clip(room // 2),), _clip(room // 2)
    prefixes = tuple(sorted(set(prefixes))) or (_clip(room - (suffix or 0)),)
    lengths = Lengths(prefixes, _clip(room - prefixes[-1]) if suffix is None else suffix)
    if lengths.total > length + 1:
        raise ConfigurationError(
            f"prefix and suffix are {lengths.total} tokens together, but the run's sequences have at most {length + 1} "
            f"(its length is {length}); give a smaller {setting('prefix')} or {setting('suffix')}"
        )
    if not (counts >= lengths.total).any():
        raise DataError(
            f"none of {len(counts)} sequences has {lengths.total} tokens, which prefix {lengths.prefixes[-1]} and "
            f"suffix {lengths.suffix} ask for; the longest has {counts.max()}: give a smaller {setting('prefix')} or "
            f"{setting('suffix')}"
        )
    return lengths


def _clip(tokens: int) -> int:
    return min(max(tokens, 1), USUAL)
