"""Binary-tree aggregation: the noise of a prefix sum is that of the few tree nodes that make it up.

Leaves count from 1; the sum of the first t rounds is made of the nodes at the set bits of t (Dwork et al. 2010; Chan et
al. 2011; Kairouz et al. 2021 for DP-FTRL). A round gets the difference of two such noises, so that optimizers see sums
of rounds and their running sum carries the noise of few nodes. Honaker's variance-reduced online estimator (Honaker
2015) averages a node with what its children say of it: `v_0 = z`, `v_h = z_h + (v_left + v_right) / 2`, and the prefix
noise is the sum of `v_h / (2 - 2^-h)` over the set bits; this is post-processing, so privacy is the same.

The plain estimator draws at most 2 nodes a round on average, again from their names, and keeps a counter. Honaker's
keeps one vector for each set bit of t, at most log2(T), which a resumed run makes again with up to 2 t draws.
"""

from typing import NamedTuple

import jax
import numpy as np

from fedlm.fl_core.privacy.mechanisms.planned_rounds import check_horizon
from fedlm.fl_core.privacy.noise_source import Draw, Name
from fedlm.fl_core.privacy.plan import PrivacyPlan
from fedlm.models.base import Params


class TreeState(NamedTuple):
    """Where the tree stands.

    Attributes:
      round: int64 scalar, the number of the next round.
      stack: Honaker's (level, estimate) of each set bit of the current tree's rounds, highest first; else empty.
    """

    round: np.ndarray
    stack: tuple[tuple[int, Params], ...] = ()


class Tree:
    """See `fedlm.fl_core.privacy.mechanisms.interface.NoiseMechanism`."""

    def __init__(self, plan: PrivacyPlan, first: int, end: int):
        self._honaker, self._complete = plan.mechanism == "tree_honaker", plan.complete_trees
        self._first, self._end, self._every = first, end, plan.restart_every

    def init(self, like: Params) -> TreeState:
        """See `NoiseMechanism.init`."""
        return TreeState(np.asarray(self._first))

    def next(self, state: TreeState, draw: Draw) -> tuple[Params, TreeState]:
        """See `NoiseMechanism.next`."""
        number = check_horizon(state.round, self._end)
        root, size = self._tree_of(number)
        leaf = number - root + 1
        last = leaf == size and number + 1 < self._end
        ends_at = 1 << (size - 1).bit_length() if self._complete and last else leaf
        if self._honaker:
            noise, stack = _honaker_noise(root, leaf, ends_at, state.stack, draw)
        else:
            noise, stack = draw(_difference(root, leaf, ends_at)), ()
        return noise, TreeState(np.asarray(number + 1), () if last else stack)

    def _tree_of(self, number: int) -> tuple[int, int]:
        """The first round of a round's tree, and how many rounds that tree has."""
        if self._every is None:
            return self._first, self._end - self._first
        start = number // self._every * self._every
        return max(start, self._first), min(start + self._every, self._end) - max(start, self._first)

    def durable(self, state: TreeState) -> np.ndarray:
        """See `NoiseMechanism.durable`."""
        return state.round

    def restore(self, durable: np.ndarray, like: Params, draw: Draw) -> TreeState:
        """See `NoiseMechanism.restore`."""
        number = int(durable)
        stack: tuple[tuple[int, Params], ...] = ()
        if self._honaker and number < self._end:
            root, _ = self._tree_of(number)
            for leaf in range(1, number - root + 1):
                stack = _push(root, leaf, stack, draw)
        return TreeState(np.asarray(number), stack)


def _node(root: int, level: int, leaf: int) -> Name:
    """Name the node of a level under which a leaf lies."""
    return root, level, (leaf - 1) >> level


def _prefix(root: int, leaf: int) -> set[Name]:
    levels = [level for level in range(leaf.bit_length()) if leaf >> level & 1]
    return {_node(root, level, leaf >> level << level) for level in levels}


def _difference(root: int, leaf: int, ends_at: int) -> list[tuple[float, Name]]:
    after, before = _prefix(root, ends_at), _prefix(root, leaf - 1)
    return [(1.0, name) for name in sorted(after - before)] + [(-1.0, name) for name in sorted(before - after)]


def _honaker_noise(
    root: int, leaf: int, ends_at: int, stack: tuple[tuple[int, Params], ...], draw: Draw
) -> tuple[Params, tuple[tuple[int, Params], ...]]:
    after = stack
    for step in range(leaf, ends_at + 1):
        after = _push(root, step, after, draw)
    # Estimates that both prefixes have cancel; what is left of the stack before was merged into the new top.
    shared = len(after) - 1
    noise = _scaled(after[-1])
    for merged in stack[shared:]:
        noise = jax.tree_util.tree_map(np.subtract, noise, _scaled(merged))
    return noise, after


def _push(root: int, leaf: int, stack: tuple[tuple[int, Params], ...], draw: Draw) -> tuple[tuple[int, Params], ...]:
    level, estimate = 0, draw([(1.0, _node(root, 0, leaf))])
    while stack and stack[-1][0] == level:
        level, left = level + 1, stack[-1][1]
        own = draw([(1.0, _node(root, level, leaf))])
        estimate = jax.tree_util.tree_map(_with_children, own, left, estimate)
        stack = stack[:-1]
    return (*stack, (level, estimate))


def _with_children(own: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    return own + (left + right) / 2


def _scaled(entry: tuple[int, Params]) -> Params:
    level, estimate = entry
    return jax.tree_util.tree_map(lambda leaf: leaf / np.float32(2 - 2.0**-level), estimate)
