"""How much of what a model was trained on it repeats when it is shown the beginning.

Discoverable extraction (Carlini et al. 2023, "Quantifying memorization across neural language models"): a sequence is
extracted where greedy decoding after its true prefix gives its true suffix, and approximately so where the two are
within a small edit distance (Ippolito et al. 2023, "Preventing generation of verbatim memorization in language models
gives a false sense of privacy"). A model guesses some suffixes without having seen them: memorisation is what training
sequences have beyond held-out ones.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from fedlm.fl_core.extras import extra

with extra("evaluation"):
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cpdist

APPROXIMATE = 0.1
"""The edit distance, as a part of the suffix, within which a suffix counts as approximately extracted."""
CONFIDENCE = 0.95
"""Of the intervals."""


def edit_distances(found: NDArray[np.int32], true: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return float64 [n], the token-level Levenshtein distances of int32 [n, suffix] as parts of the length."""
    if not len(found):
        return np.zeros(0)
    distances = cpdist(found.tolist(), true.tolist(), scorer=Levenshtein.distance, dtype=np.int64)
    return distances / found.shape[1]


def most_edits(suffix: int) -> int:
    """Say how many edits a suffix of a length may take to count as approximately extracted."""
    return sum(edits / suffix <= APPROXIMATE for edits in range(1, suffix + 1))


def extraction_rates(found: NDArray[np.int32], true: NDArray[np.int32]) -> dict[str, Any]:
    """Return the `rate`s, `exact` and `approximate`, of at least one decoded suffix, int32 [n, suffix]."""
    distances = edit_distances(found, true)
    return {
        "exact": rate(int((distances == 0).sum()), len(distances)),
        "approximate": rate(int((distances <= APPROXIMATE).sum()), len(distances)),
    }


def rate(successes: int, trials: int) -> dict[str, Any]:
    """Describe a share with its Wilson score interval: `count`, `of`, `rate`, `low` and `high`."""
    interval = binomtest(successes, trials).proportion_ci(CONFIDENCE, "wilson")
    return {
        "count": successes,
        "of": trials,
        "rate": successes / trials,
        "low": float(interval.low),
        "high": float(interval.high),
    }


def rate_difference(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Subtract the `rate` in one sample from that in an independent one: `difference`, `low` and `high`.

    The interval is that of Newcombe 1998 ("Interval estimation for the difference between independent proportions",
    method 10), made of the two Wilson intervals.
    """
    found = one["rate"] - other["rate"]
    below = math.hypot(one["rate"] - one["low"], other["high"] - other["rate"])
    above = math.hypot(one["high"] - one["rate"], other["rate"] - other["low"])
    return {"difference": found, "low": found - below, "high": found + above}
