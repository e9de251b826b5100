"""Worst-case L2 sensitivity of binary-tree aggregation when a client may take part in several rounds.

A client that takes part in the rounds x_1 < ... < x_m changes the sum of every tree node by its number of rounds under
that node times its (clipped) update, so the squared sensitivity is `max over admissible rounds of sum over nodes of
count^2` in units of the clip norm (Kairouz et al. 2021, "Practical and private (deep) learning without sampling or
shuffling", section 3 and appendix D). Admissible are at most k rounds with `x_(i+1) - x_i >= b`.

The maximum is exact. A subtree matters to its neighbours only by how close to its two ends its first and last
participation lie, so a table over (count, distance from the left end, distance from the right end) is built level by
level; all full subtrees of a level share one table.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedlm.fl_core.errors import ConfigurationError, setting

_IMPOSSIBLE = np.int64(-(1 << 60))


class _Subtree(NamedTuple):
    """The best sums of squares in consecutive rounds.

    Attributes:
      rounds: how many rounds it covers.
      best: int64 [counts, b, b]: best[c - 1, p, q] is the greatest sum over its nodes of count^2 with c participations,
        the first not among the first p rounds and the last not among the last q.
    """

    rounds: int
    best: np.ndarray


def tree_sensitivity_squared(
    tree_rounds: Sequence[int],
    max_participations: int | None,
    min_separation: int,
    completed: bool = False,
) -> int:
    """Compute the squared sensitivity of one tree, or of trees one after another, to one client with updates of norm 1.

    Args:
      tree_rounds: how many rounds each tree has; the first round of a tree follows the last of the tree before.
      max_participations: k, in how many rounds of all trees a client may take part; None for as many as fit.
      min_separation: b, the least difference of the numbers of two rounds of a client; 1 allows adjacent rounds.
      completed: whether every tree is completed to a power of two by rounds without clients before the next begins, so
        that nodes which reach beyond its last round are released too.

    Raises:
      ConfigurationError: a number is below 1.
    """
    for name, value in (("min_separation", min_separation), ("max_participations", max_participations)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{setting(name)} is {value}, but must be at least 1")
    if any(rounds < 1 for rounds in tree_rounds):
        raise ConfigurationError(f"trees of {list(tree_rounds)} rounds: each must have at least 1")
    total = sum(tree_rounds)
    # With participations further apart than all rounds there is at most one.
    separation = min(min_separation, max(total, 1))
    most = -(-total // separation)
    levels = _Levels(separation, most if max_participations is None else min(most, max_participations))
    # prefix[c, q]: the best of all trees so far with c participations, the last not among the last q rounds.
    prefix = np.full((levels.most + 1, separation), _IMPOSSIBLE)
    prefix[0] = 0
    for rounds in tree_rounds:
        for subtree in levels.completed(rounds) if completed else levels.of_forest(rounds):
            prefix = _append(prefix, subtree, separation)
    return int(prefix.max())


class _Levels:
    """Tables of full subtrees, made when first asked for."""

    def __init__(self, separation: int, most: int):
        self._separation, self.most = separation, most

    @cached_property
    def _full(self) -> list[_Subtree]:
        leaf = np.full((1, self._separation, self._separation), _IMPOSSIBLE)
        leaf[0, 0, 0] = 1
        return [_Subtree(1, leaf)]

    def full(self, level: int) -> _Subtree:
        while len(self._full) <= level:
            below = self._full[-1]
            self._full.append(self._parent(below, below))
        return self._full[level]

    def of_forest(self, rounds: int) -> list[_Subtree]:
        """The maximal full subtrees of so many rounds, from left to right."""
        return [self.full(level) for level in range(rounds.bit_length() - 1, -1, -1) if rounds >> level & 1]

    def completed(self, rounds: int) -> list[_Subtree]:
        """One tree of the next power of two, in whose last rounds nobody takes part."""
        return [self._partial((rounds - 1).bit_length(), rounds)]

    def _partial(self, level: int, rounds: int) -> _Subtree:
        half = 1 << level >> 1
        if rounds == 1 << level:
            return self.full(level)
        if rounds > half:
            return self._parent(self.full(level - 1), self._partial(level - 1, rounds - half))
        return _with_root(self._partial(level - 1, rounds))

    def _parent(self, left: _Subtree, right: _Subtree) -> _Subtree:
        separation = self._separation
        rounds = left.rounds + right.rounds
        counts = min(self.most, -(-rounds // separation))
        best = np.full((counts, separation, separation), _IMPOSSIBLE)
        places = np.arange(separation)
        mine, theirs = len(left.best[:counts]), len(right.best[:counts])
        only_left = left.best[:counts][:, :, np.maximum(places - right.rounds, 0)]
        only_right = right.best[:counts][:, np.maximum(places - left.rounds, 0), :]
        np.maximum(best[:mine], only_left, out=best[:mine])
        np.maximum(best[:theirs], only_right, out=best[:theirs])
        # The last on the left leaves out s rounds at its end, so the first on the right leaves out b - 1 - s.
        first, last = max(0, separation - right.rounds), min(separation, left.rounds)
        for count in range(1, counts):
            together = best[count : count + theirs]
            others = right.best[: len(together)]
            for left_out in range(first, last):
                ends = left.best[count - 1, :, left_out] if count <= mine else None
                if ends is not None:
                    # Rows of the left that are impossible need no pairing.
                    possible = int(np.searchsorted(-ends, 0, side="right"))
                    sums = ends[None, :possible, None] + others[:, separation - 1 - left_out, None, :]
                    np.maximum(together[:, :possible], sums, out=together[:, :possible])
        return _with_root(_Subtree(rounds, best))


def _with_root(subtree: _Subtree) -> _Subtree:
    squares = np.arange(1, len(subtree.best) + 1)[:, None, None] ** 2
    return subtree._replace(best=np.where(subtree.best < 0, _IMPOSSIBLE, subtree.best + squares))


def _append(prefix: np.ndarray, subtree: _Subtree, separation: int) -> np.ndarray:
    """Put a subtree behind the trees so far; no node covers both."""
    places = np.arange(separation)
    result = prefix[:, np.maximum(places - subtree.rounds, 0)].copy()
    most, counts = len(prefix) - 1, len(subtree.best)
    alone = min(most, counts)
    np.maximum(result[1 : alone + 1], subtree.best[:alone, 0], out=result[1 : alone + 1])
    for count in range(1, most):
        together = result[count + 1 : count + 1 + counts]
        others = subtree.best[: len(together)]
        sums = prefix[count][None, :, None] + others[:, ::-1]
        np.maximum(together, sums.max(axis=1), out=together)
    return np.maximum(result, _IMPOSSIBLE)
