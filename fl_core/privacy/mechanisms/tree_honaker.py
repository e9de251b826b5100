"""Binary-tree aggregation with Honaker's variance-reduced online estimator (Honaker 2015).

It averages a node with what its children say of it: `v_0 = z`, `v_h = z_h + (v_left + v_right) / 2`, and the prefix
noise is the sum of `v_h / (2 - 2^-h)` over the set bits; this is post-processing, so privacy is that of the tree. One
vector is kept for each set bit of t, at most log2(T), which a resumed run makes again with up to 2 t draws.
"""

import operator

import jax
import numpy as np

from fedlm.fl_core.privacy.mechanisms.interface import NoisePlan
from fedlm.fl_core.privacy.mechanisms.tree import Stack, Tree, TreeNoise, TreeState, node
from fedlm.fl_core.privacy.noise.noise_source import Draw
from fedlm.models.base import Params


class HonakerNoise(TreeNoise):
    """Differences of the estimates of prefix sums."""

    def _noise_of(self, root: int, leaf: int, *, ends_at: int, stack: Stack, draw: Draw) -> tuple[Params, Stack]:
        after = stack
        for step in range(leaf, ends_at + 1):
            after = _push(root, step, after, draw)
        # Estimates that both prefixes have cancel; what is left of the stack before was merged into the new top.
        shared = len(after) - 1
        noise = _scaled(after[-1])
        for merged in stack[shared:]:
            noise = jax.tree_util.tree_map(operator.sub, noise, _scaled(merged))
        return noise, after

    def restore(self, durable: np.ndarray, like: Params, draw: Draw) -> TreeState:
        number = int(durable)
        stack: Stack = ()
        if number < self._end:
            root, _ = self._tree_of(number)
            with jax.enable_x64(True):
                for leaf in range(1, number - root + 1):
                    stack = _push(root, leaf, stack, draw)
        return TreeState(np.asarray(number), stack)


def _push(root: int, leaf: int, stack: Stack, draw: Draw) -> Stack:
    level, estimate = 0, draw([(1.0, node(root, 0, leaf))])
    while stack and stack[-1][0] == level:
        level, left = level + 1, stack[-1][1]
        own = draw([(1.0, node(root, level, leaf))])
        estimate = jax.tree_util.tree_map(_with_children, own, left, estimate)
        stack = stack[:-1]
    return (*stack, (level, estimate))


def _with_children(own: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    return own + (left + right) / 2


def _scaled(entry: tuple[int, Params]) -> Params:
    level, estimate = entry
    return jax.tree_util.tree_map(lambda leaf: leaf / (2 - 2.0**-level), estimate)


class TreeHonaker(Tree):
    """Trees with estimates from below."""

    name = "tree_honaker"
    label = "tree, Honaker"
    summary = "binary-tree aggregation with Honaker's estimator; it spends what tree does"
    help = "the same with less noise for more memory"

    def noise(self, plan: NoisePlan, first: int, end: int) -> HonakerNoise:
        return HonakerNoise(plan, first, end)

    def node_variance(self, levels: np.ndarray) -> np.ndarray:
        return 1 / (2 - 2.0**-levels)


MECHANISM = TreeHonaker()
