"""A description of a token store in numbers, for people and for programs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.special_tokens import OOV_ID
from simulations.datasets.store import ClientSplit, TokenStore

TRUNCATION_LENGTH = 20


def describe(store: TokenStore) -> dict[str, Any]:
    """Describe a store; reads all its tokens once, one record batch at a time.

    Returns:
      A JSON-able dict: `path`, `source`, `vocabulary_size`, `fingerprint` (of the tokenizer), `parameters`,
      `skipped` (count by reason), `first_skipped` (place of the first by reason) and `splits`, which has for each
      split: `clients`, `examples`, `tokens`
      (without BOS and EOS), `examples_per_client` and `tokens_per_example` (each `min`, `median`, `mean`,
      `p90`, `max`; null where there is nothing), `truncation_length` and `truncated_share` (the share of
      examples that lose something, EOS included, when cut to that length) and `oov_share` (of all tokens).

    Raises:
      DataError: a file of the store is damaged.
    """
    return {
        "path": str(store.path),
        "source": store.source,
        "vocabulary_size": store.vocabulary_size,
        "fingerprint": store.fingerprint,
        "parameters": store.header.parameters,
        "splits": {name: describe_split(store.split(name)) for name in store.header.splits},
        "skipped": store.header.skipped,
        "first_skipped": store.header.first_skipped,
    }


def describe_split(split: ClientSplit) -> dict[str, Any]:
    """Describe one split, as in `describe`."""
    length_counts = np.zeros(1, np.int64)
    oov = 0
    for batch in range(split.num_batches):
        counts = np.bincount(split.batch_lengths(batch), minlength=len(length_counts))
        counts[: len(length_counts)] += length_counts
        length_counts = counts
        oov += int(np.count_nonzero(split.batch_values(batch) == OOV_ID))
    examples, tokens = split.header.examples, split.header.tokens
    # [BOS] and [EOS] take one place of the length + 1 each.
    truncated = int(length_counts[TRUNCATION_LENGTH:].sum())
    return {
        "clients": split.num_clients,
        "examples": examples,
        "tokens": tokens,
        "examples_per_client": _statistics(np.bincount(split.num_examples)),
        "tokens_per_example": _statistics(length_counts),
        "truncation_length": TRUNCATION_LENGTH,
        "truncated_share": truncated / examples if examples else None,
        "oov_share": oov / tokens if tokens else None,
    }


def _statistics(counts: NDArray[np.int64]) -> dict[str, float | None]:
    """Summarize numbers given as a histogram: `counts[v]` of them equal v."""
    cumulative = np.cumsum(counts)
    total = int(cumulative[-1]) if len(counts) else 0
    if not total:
        return dict.fromkeys(("min", "median", "mean", "p90", "max"))

    def quantile(share: float) -> float:
        # The value at linear position share * (total - 1) among the sorted numbers, as numpy.quantile has it.
        position = share * (total - 1)
        low, high = np.searchsorted(cumulative, [int(position), min(int(position) + 1, total - 1)], "right")
        return float(low + (position - int(position)) * (high - low))

    present = np.flatnonzero(counts)
    return {
        "min": int(present[0]),
        "median": quantile(0.5),
        "mean": float(np.arange(len(counts)) @ counts) / total,
        "p90": quantile(0.9),
        "max": int(present[-1]),
    }
