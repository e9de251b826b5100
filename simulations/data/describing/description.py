"""A description of a token store in numbers, for people and for programs, and the counts that it is made of."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.store.client_split import ClientSplit
from fedlm.simulations.data.store.token_store import TokenStore

TRUNCATION_LENGTH = 20
TRUNCATION_LENGTHS = (10, 20, 30, 50)
RANKS = (100, 1_000, 10_000)


class SplitCounts(NamedTuple):
    """What is counted in one split, numbers as int64."""

    lengths: NDArray[np.int64]  # [longest + 1], examples of each length in tokens, without BOS and EOS
    tokens: NDArray[np.int64]  # [vocabulary size], how often each occurs
    examples_per_client: NDArray[np.int64]  # [clients]
    ends: bool = True  # whether EOS follows an example, as it does but for sequences of items


def count_store(store: TokenStore) -> dict[str, SplitCounts]:
    """Count in every split; reads all tokens once, one record batch at a time. DataError: a file is damaged."""
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
    return SplitCounts(lengths, tokens, split.num_examples, not split.item_sequences)


def describe(store: TokenStore) -> dict[str, Any]:
    """Describe a store; reads all its tokens once, one record batch at a time.

    Returns a JSON-able dict: `path`, `source`, `completions` (whether examples are prompts with what completes them,
    both in all that is counted), `item_sequences` (whether they are the items of a user, those of heldout and test with
    all items before the held-out one), `vocabulary_size`, `fingerprint` (of the tokenizer), `vocabulary_origin`
    (see `VocabularyOrigin.as_json`), `parameters`, `skipped` (count by reason), `first_skipped` (place of the first by
    reason) and `splits`, each with: `clients`, `examples`, `tokens` (without BOS and EOS), `examples_per_client` and
    `tokens_per_example` (each `min`, `median`, `mean`, `p90`, `max`; null where there is nothing), `truncation_length`
    and `truncated_share` (the share of examples that lose something, EOS included, when cut to that length),
    `truncated_share_by_length` (the same by length, as a string), `oov_share` (of all tokens), `coverage` (the share of
    the others), `vocabulary_used` (how many entries of the vocabulary occur, special tokens not counted) and
    `coverage_by_rank` (the share of all tokens that the most frequent 100, 1,000 and 10,000 entries make up, by their
    number as a string, as far as there are so many). Raises DataError where a file of the store is damaged.
    """
    counts = count_store(store)
    return {
        "path": str(store.path),
        "source": store.source,
        "completions": store.has_completions,
        "item_sequences": store.item_sequences,
        "vocabulary_size": store.vocabulary_size,
        "fingerprint": store.fingerprint,
        "vocabulary_origin": store.header.vocabulary_origin.as_json(),
        "parameters": store.header.parameters,
        "splits": {name: describe_split(split) for name, split in counts.items()},
        "skipped": store.header.skipped,
        "first_skipped": store.header.first_skipped,
    }


def describe_split(counts: SplitCounts) -> dict[str, Any]:
    """Describe one split, as in `describe`."""
    examples, tokens = int(counts.lengths.sum()), int(counts.tokens.sum())
    oov = int(counts.tokens[OOV_ID])
    # Special tokens are no entries of the vocabulary.
    covered = np.cumsum(np.sort(counts.tokens[OOV_ID + 1 :])[::-1]) / max(tokens, 1)
    return {
        "clients": len(counts.examples_per_client),
        "examples": examples,
        "tokens": tokens,
        "examples_per_client": _statistics(np.bincount(counts.examples_per_client)),
        "tokens_per_example": _statistics(counts.lengths),
        "truncation_length": TRUNCATION_LENGTH,
        "truncated_share": truncated_share(counts, TRUNCATION_LENGTH),
        "truncated_share_by_length": {str(cut): truncated_share(counts, cut) for cut in TRUNCATION_LENGTHS},
        "oov_share": oov / tokens if tokens else None,
        "coverage": 1 - oov / tokens if tokens else None,
        "vocabulary_used": int(np.count_nonzero(counts.tokens[OOV_ID + 1 :])),
        "coverage_by_rank": {
            str(rank): float(covered[rank - 1]) if tokens else None for rank in RANKS if rank <= len(covered)
        },
    }


def truncated_share(counts: SplitCounts, length: int) -> float | None:
    """Return the share of examples that lose something, EOS included, when cut to a length; None without any."""
    examples = int(counts.lengths.sum())
    # [BOS] and [EOS], where that follows, take one place of the length + 1 each.
    return int(counts.lengths[length + (not counts.ends) :].sum()) / examples if examples else None


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
