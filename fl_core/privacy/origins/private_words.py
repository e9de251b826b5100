"""Counting words so that no client can be told from the counts: bounded contributions, noise, and a threshold.

Each client adds the same weight to the counts of its most frequent distinct words. The number of words has a limit, and
the weights are so small that their L2 norm is bounded. A client that writes a word often, or writes much, adds nothing
more. Noise goes to every count, and words whose noised count is below a threshold are dropped.
`fedlm.fl_core.privacy.promise.counts.vocabulary_spending` computes the cost.
"""

import hashlib
import heapq
import math
import secrets
from collections import Counter
from collections.abc import Mapping

from fedlm.fl_core.privacy.noise.integer_noise import RandomBelow, rounded_gaussian
from fedlm.fl_core.privacy.origins.vocabulary_origin import PrivateVocabulary

COUNT_NORM = 1 << 16
"""L2 norm of what a client adds to all counts, at most; so counts are whole numbers."""

MOST_TRAINING_WORDS = 20_000_000
"""Words in all that a tokenizer is trained on: counts are scaled down to this, which keeps their order."""


def word_weight(words: int) -> int:
    """Compute what a client with so many distinct words adds to the count of each."""
    return math.isqrt(COUNT_NORM**2 // words)


def contribution(client_id: str, words: Mapping[str, int], most: int) -> dict[str, int]:
    """Compute what a client adds to the counts: a function of its own words alone, of L2 norm `COUNT_NORM` at most.

    Where it has more than `most` distinct words these are the ones it wrote most often, and of those it wrote equally
    often some that its id decides.
    """
    kept = list(words)
    if len(kept) > most:
        kept = heapq.nsmallest(most, kept, key=lambda word: (-words[word], _order(client_id, word)))
    return dict.fromkeys(kept, word_weight(len(kept))) if kept else {}


def _order(client_id: str, word: str) -> bytes:
    return hashlib.sha256(f"{client_id}\0{word}".encode("utf-8", "surrogatepass")).digest()


def noisy_words(
    counts: Mapping[str, int], plan: PrivateVocabulary, random_below: RandomBelow = secrets.randbelow
) -> Counter[str]:
    """Choose words with differential privacy, and say how often each is to count in training.

    Args:
      counts: the sum of all clients' contributions, none of them zero.
      plan: the amount of noise, and the threshold.
      random_below: the source of the noise, the operating system's entropy; another hides nothing.

    Returns:
      Of each word whose noised count reaches the threshold a positive number in proportion to that.
    """
    deviation = round(plan.noise_multiplier * COUNT_NORM)
    threshold = round(plan.threshold * COUNT_NORM)
    noised = {word: count + rounded_gaussian(deviation, random_below) for word, count in counts.items()}
    kept = {word: count for word, count in noised.items() if count >= threshold}
    # A client of many words adds a hundredth of the norm or so to each, which then counts for some tens.
    scale = max(COUNT_NORM // 1000, -(-sum(kept.values()) // MOST_TRAINING_WORDS))
    return Counter({word: max(1, count // scale) for word, count in kept.items()})
