"""Metrics of rankings in which one item is the right one: HIT@k, NDCG@k, coverage, and all by an item's popularity."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TIES = "items of equal score are in random order, and the metrics are expectations over it"
"""What is done about ties, in words."""
GROUPS = ("head", "middle", "tail")
"""Items by popularity, the most popular first; each makes up about a third of what was trained on."""


class Places(NamedTuple):
    """Where the right items stand, all int64 [users].

    Attributes:
      better: candidates with a higher score than the right item's.
      equal: other candidates with the same score.
      candidates: all, the right item among them.
    """

    better: NDArray[np.int64]
    equal: NDArray[np.int64]
    candidates: NDArray[np.int64]


def hits(places: Places, k: int) -> NDArray[np.float64]:
    """Compute HIT@k, float64 [users]: the probability that the right item is among the first k.

    Example:
      >>> hits(Places(np.array([0, 2, 2]), np.array([0, 0, 3]), np.array([9, 9, 9])), 3).tolist()
      [1.0, 1.0, 0.25]
    """
    within = np.clip(k - places.better, 0, places.equal + 1)
    return within / (places.equal + 1)


def gains(places: Places, k: int) -> NDArray[np.float64]:
    """Compute NDCG@k, float64 [users]: the expectation of 1 / log2(1 + rank) where that is among the first k, else 0.

    With one right item the ideal gain is 1 (Jarvelin and Kekalainen 2002).

    Example:
      >>> gains(Places(np.array([0, 2]), np.array([0, 0]), np.array([9, 9])), 10).tolist()
      [1.0, 0.5]
    """
    of_first = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])
    last = np.minimum(places.better + places.equal + 1, k)
    return (of_first[last] - of_first[np.minimum(places.better, k)]) / (places.equal + 1)


def popularity_groups(interactions: NDArray[np.integer]) -> NDArray[np.int64]:
    """Put items into `GROUPS` by how often they occur in what was trained on.

    An item belongs to the head where all that are more popular have less than a third of the interactions together, to
    the middle where they have less than two thirds, and to the tail else, or where it does not occur.

    Args:
      interactions: integer [items], how often each occurs.

    Returns:
      int64 [items], places in `GROUPS`.

    Example:
      >>> popularity_groups(np.array([1, 6, 1, 4, 3, 0])).tolist()
      [2, 0, 2, 1, 2, 2]
    """
    counts, of_item, items = np.unique(interactions, return_inverse=True, return_counts=True)
    mass = counts * items
    before = mass[::-1].cumsum()[::-1] - mass  # interactions of more popular items
    groups = np.minimum(len(GROUPS) * before // max(int(mass.sum()), 1), len(GROUPS) - 1)
    groups[counts == 0] = len(GROUPS) - 1
    return groups[of_item]


def describe_ranking(
    places: Places, targets: NDArray[np.integer], interactions: NDArray[np.integer], top_k: Sequence[int]
) -> dict[str, Any]:
    """Describe where the right items stand, for a JSON record.

    Args:
      places: of each user's right item.
      targets: integer [users], the right items, as places in `interactions`.
      interactions: integer [items], how often each item occurs in what was trained on.
      top_k: each k of HIT@k and NDCG@k.

    Returns:
      `scores`, each metric's `value` and `standard_error` over users; and `by_popularity`, in the order of `GROUPS`,
      each with its `group`, the number of its `items`, the `fewest` and `most` interactions of one, its `users`, whose
      right item is in it, and their `scores`, None where there is no such item or user.
    """
    groups = popularity_groups(interactions)
    parts = []
    for number, name in enumerate(GROUPS):
        of_group = interactions[groups == number]
        users = groups[targets] == number
        part = Places(*(values[users] for values in places))
        parts.append(
            {
                "group": name,
                "items": len(of_group),
                "fewest": int(of_group.min()) if len(of_group) else None,
                "most": int(of_group.max()) if len(of_group) else None,
                "users": int(users.sum()),
                "scores": _scores(part, top_k),
            }
        )
    return {"scores": _scores(places, top_k), "by_popularity": parts}


def _scores(places: Places, top_k: Sequence[int]) -> dict[str, dict[str, float | None]]:
    found = {}
    for k in top_k:
        for name, values in ((f"hit@{k}", hits(places, k)), (f"ndcg@{k}", gains(places, k))):
            number = len(values)
            error = float(values.std(ddof=1)) / number**0.5 if number > 1 else None
            found[name] = {"value": float(values.mean()) if number else None, "standard_error": error}
    return found
