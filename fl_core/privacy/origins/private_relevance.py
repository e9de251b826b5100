"""Counting in how many units each token occurs, so that no client can be told from the counts.

Each client adds, for each token, the share of its units that contain it, and one for itself. What it adds has a bounded
L2 norm: if its units have many distinct tokens, its shares are scaled down. Noise goes to every count, also to that of
clients. The vocabulary is known, so no threshold needs to keep a count secret.
`fedlm.fl_core.privacy.promise.counts.relevance_spending` computes the cost.
"""

import math
import secrets

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.privacy.noise.integer_noise import RandomBelow, rounded_gaussian
from fedlm.fl_core.privacy.origins.private_words import COUNT_NORM
from fedlm.fl_core.privacy.origins.relevance_origin import PrivateRelevance

_SLACK = 1e-9  # relative, by which shares are scaled down more than 64-bit floating point says that they need be


def contribution(shares: NDArray[np.float64], tokens_per_unit: int) -> NDArray[np.int64]:
    """Compute what a client adds to the counts, of L2 norm `COUNT_NORM` at most, whatever its shares are.

    Args:
      shares: float64 [vocabulary], of the client's units that each token occurs in, from 0 to 1.
      tokens_per_unit: distinct tokens of a unit that count fully.

    Returns:
      int64 [vocabulary + 1]; the last is the client's own count.
    """
    one = _of_one(tokens_per_unit)
    norm = float(np.linalg.norm(shares)) * (1 + _SLACK)
    scale = min(1.0, math.sqrt(tokens_per_unit) / norm) if norm else 1.0
    # Rounding down lengthens nothing, as no share is negative.
    return np.append(np.floor(shares * (scale * one)).astype(np.int64), one)


def _of_one(tokens_per_unit: int) -> int:
    return math.isqrt(COUNT_NORM**2 // (tokens_per_unit + 1))


def noised_relevance(
    sums: NDArray[np.int64], plan: PrivateRelevance, random_below: RandomBelow = secrets.randbelow
) -> tuple[float, ...]:
    """Estimate relevances from the sum of all clients' contributions, with noise.

    Args:
      sums: int64 [vocabulary + 1].
      plan: the amount of noise.
      random_below: the source of the noise, the operating system's entropy; another hides nothing.

    Returns:
      Of each token a number above 0 and at most 1. A token whose noised count is below one standard deviation of the
      noise, of which nothing is known but that it is rare, counts for that.
    """
    deviation = round(plan.noise_multiplier * COUNT_NORM)
    *counts, clients = (int(count) + rounded_gaussian(deviation, random_below) for count in sums.tolist())
    clients = max(clients, deviation, _of_one(plan.tokens_per_unit))
    return tuple(min(max(count, deviation) / clients, 1.0) for count in counts)


def counted_relevance(occurrences: NDArray[np.int64], units: int) -> tuple[float, ...]:
    """Compute relevances from counts without noise: of each token the share of units that it occurs in; one that occurs
    in none counts for half a unit.

    Args:
      occurrences: int64 [vocabulary], units that each token occurs in.
      units: how many there are, at least 1.
    """
    return tuple((np.maximum(occurrences, 0.5) / units).tolist())
