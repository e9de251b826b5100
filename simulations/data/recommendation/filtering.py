"""Which interactions are left where users and items with few of them are left out."""

import numpy as np
from numpy.typing import NDArray


def filter_by_count(
    users: NDArray[np.integer], items: NDArray[np.integer], least: int, iterated: bool
) -> NDArray[np.bool_]:
    """Keep the interactions of users and of items that have enough of them.

    Args:
      users: integer [interactions], the number of each one's user.
      items: integer [interactions], the number of each one's item.
      least: interactions that a user or an item must have.
      iterated: whether to go on until all users and items that are left have so many among themselves, which is the
        k-core of the bipartite graph and does not depend on any order; else both are counted once, before anything is
        left out, as the preprocessing of SASRec does (Kang and McAuley 2018, public code).

    Returns:
      bool [interactions], which of them are kept.

    Example:
      >>> filter_by_count(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), 2, iterated=False).tolist()
      [False, True, True, False]
      >>> filter_by_count(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), 2, iterated=True).tolist()
      [False, False, False, False]
    """
    kept = np.ones(len(users), bool)
    while True:
        enough = kept & has_enough(users, kept, least) & has_enough(items, kept, least)
        if not iterated or enough.sum() == kept.sum():
            return enough
        kept = enough


def has_enough(numbers: NDArray[np.integer], counted: NDArray[np.bool_], least: int) -> NDArray[np.bool_]:
    """Say of each interaction, bool [interactions], whether its user or item, integer [interactions], has `least` of
    those that are counted, bool [interactions]."""
    return (np.bincount(numbers[counted], minlength=int(numbers.max(initial=0)) + 1) >= least)[numbers]
