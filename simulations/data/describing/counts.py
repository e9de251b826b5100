"""How often things occur in the splits of a token store: lengths, tokens, examples and tokens of clients."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.simulations.data.store.token_store import ClientSplit, TokenStore


class SplitCounts(NamedTuple):
    """What is counted in one split, all of it int64."""

    lengths: NDArray[np.int64]  # [longest + 1], examples of each length in tokens, without BOS and EOS
    tokens: NDArray[np.int64]  # [vocabulary size], how often each occurs
    examples_per_client: NDArray[np.int64]  # [clients]
    tokens_per_client: NDArray[np.int64]  # [clients]


def count_store(store: TokenStore) -> dict[str, SplitCounts]:
    """Count in every split; reads all tokens once, one record batch at a time. Raises DataError where a file is
    damaged."""
    return {name: count_split(store.split(name), store.vocabulary_size) for name in store.header.splits}


def count_split(split: ClientSplit, vocabulary_size: int) -> SplitCounts:
    """Count in one split, as `count_store`."""
    lengths = np.zeros(1, np.int64)
    tokens = np.zeros(vocabulary_size, np.int64)
    for batch in range(split.num_batches):
        counts = np.bincount(split.batch_lengths(batch), minlength=len(lengths))
        counts[: len(lengths)] += lengths
        lengths = counts
        tokens += np.bincount(split.batch_values(batch), minlength=vocabulary_size)
    return SplitCounts(lengths, tokens, split.num_examples, split.num_tokens)
