"""Binary-tree aggregation: the noise of a prefix sum is that of the few tree nodes that make it up.

Leaves count from 1; the sum of the first t rounds is made of the nodes at the set bits of t (Dwork et al. 2010; Chan et
al. 2011; Kairouz et al. 2021 for DP-FTRL). A round gets the difference of two such noises, so that optimizers see sums
of rounds and their running sum carries the noise of few nodes. At most 2 nodes a round are drawn on average, again from
their names, and only a counter is kept.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count
from fedlm.fl_core.privacy.mechanisms.interface import (
    Generations,
    Mechanism,
    NoisePlan,
    RoundNoise,
    check_horizon,
    last_round,
)
from fedlm.fl_core.privacy.mechanisms.tree_sensitivity import tree_sensitivity_squared
from fedlm.fl_core.privacy.noise.noise_source import Draw, Name
from fedlm.models.arguments import check_fields
from fedlm.models.base import Params

Stack = tuple[tuple[int, Params], ...]
"""(Level, estimate) of each set bit of the current tree's rounds, highest first."""


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """When a tree of noise ends, and what ends with it."""

    tree_restart_every: Count | None = None
    """Rounds of a tree, after which a new one begins."""
    tree_complete: bool = False
    """Complete each tree to a power of two before the next begins, which leaves less noise behind."""
    tree_restart_optimizer: bool = False
    """Let the server optimizer forget its state whenever a tree ends, as DP-FTRL with momentum does."""


@dataclass(frozen=True)
class Trees:
    """The trees of a plan.

    Attributes:
      restart_every: a new tree begins after every so many rounds; None for a single one.
      complete_trees: whether a tree is completed to a power of two before the next begins, which lowers the noise
        that lasts.
    """

    restart_every: int | None = None
    complete_trees: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.restart_every is not None and self.restart_every < 1:
            raise ConfigurationError(f"{setting('restart_every')} is {self.restart_every}, but must be at least 1")
        if self.complete_trees and self.restart_every is None:
            raise ConfigurationError(
                f"{setting('complete_trees')} does nothing without {setting('restart_every')}, since no tree comes "
                "after one"
            )

    @staticmethod
    def of(plan: NoisePlan) -> "Trees":
        """Give those of a plan."""
        return Trees() if plan.own is None else plan.own

    def segments(self, first: int, end: int) -> list[int]:
        """Count the rounds between restarts, at multiples of `restart_every`, from `first` to before `end`."""
        if self.restart_every is None:
            return [end - first] if end > first else []
        cuts = [first, *range((first // self.restart_every + 1) * self.restart_every, end, self.restart_every), end]
        return [after - before for before, after in itertools.pairwise(cuts) if after > before]


@dataclass(frozen=True, kw_only=True)
class TreeOptions:
    """When a tree of noise ends, as `fedlm account` asks for it."""

    restart_every: Count | None = None
    """Rounds of a tree, after which a new one begins."""
    complete: bool = False
    """Each tree is completed to a power of two before the next begins."""


class TreeState(NamedTuple):
    """Where the tree stands.

    Attributes:
      round: int64 scalar, the number of the next round.
      stack: of Honaker's estimates; else empty.
    """

    round: np.ndarray
    stack: Stack = ()


class TreeNoise:
    """Differences of the noise of prefix sums."""

    def __init__(self, plan: NoisePlan, first: int, end: int):
        trees = Trees.of(plan)
        self._complete, self._first, self._end, self._every = trees.complete_trees, first, end, trees.restart_every

    def init(self, like: Params) -> TreeState:
        return TreeState(np.asarray(self._first))

    def next(self, state: TreeState, draw: Draw) -> tuple[Params, TreeState]:
        number = check_horizon(state.round, self._end)
        root, size = self._tree_of(number)
        leaf = number - root + 1
        last = leaf == size and number + 1 < self._end
        ends_at = 1 << (size - 1).bit_length() if self._complete and last else leaf
        with jax.enable_x64(True):
            noise, stack = self._noise_of(root, leaf, ends_at=ends_at, stack=state.stack, draw=draw)
        return noise, TreeState(np.asarray(number + 1), () if last else stack)

    def _tree_of(self, number: int) -> tuple[int, int]:
        """The first round of a round's tree, and how many rounds that tree has."""
        if self._every is None:
            return self._first, self._end - self._first
        start = number // self._every * self._every
        return max(start, self._first), min(start + self._every, self._end) - max(start, self._first)

    def _noise_of(self, root: int, leaf: int, *, ends_at: int, stack: Stack, draw: Draw) -> tuple[Params, Stack]:
        """What to add where prefix sums go on from before `leaf` to `ends_at`, and the stack after that."""
        after, before = _prefix(root, ends_at), _prefix(root, leaf - 1)
        terms = [(1.0, name) for name in sorted(after - before)] + [(-1.0, name) for name in sorted(before - after)]
        return draw(terms), ()

    def durable(self, state: TreeState) -> np.ndarray:
        return state.round

    def restore(self, durable: np.ndarray, like: Params, draw: Draw) -> TreeState:
        return TreeState(np.asarray(int(durable)))


def node(root: int, level: int, leaf: int) -> Name:
    """Name the node of a level under which a leaf lies."""
    return root, level, (leaf - 1) >> level


def _prefix(root: int, leaf: int) -> set[Name]:
    levels = [level for level in range(leaf.bit_length()) if leaf >> level & 1]
    return {node(root, level, leaf >> level << level) for level in levels}


class Tree(Mechanism):
    """Plain binary trees."""

    name = "tree"
    label = "tree"
    summary = "binary-tree aggregation (DP-FTRL)"
    help = "binary-tree aggregation (DP-FTRL)"
    settings = TreeSettings
    options = TreeOptions
    own_plan = Trees
    uneven = True

    def options_of(self, settings: Any) -> TreeOptions:
        return TreeOptions(restart_every=settings.tree_restart_every, complete=settings.tree_complete)

    def restarts_optimizer(self, settings: Any) -> bool:
        return bool(settings.tree_restart_optimizer)

    def plan_fields(self, options: TreeOptions) -> dict[str, Any]:
        trees = Trees(options.restart_every, options.complete)
        return {"own": None if trees == Trees() else trees}

    def begins_anew_every(self, plan: NoisePlan) -> int | None:
        return Trees.of(plan).restart_every

    def clip_norm_moves_every(self, plan: NoisePlan) -> int | None:
        return self.begins_anew_every(plan)

    def work(self, plan: NoisePlan) -> float:
        if plan.participation.sampled:
            return super().work(plan)
        bound = plan.participation.bounded(plan.rounds)
        tree = min(Trees.of(plan).restart_every or plan.rounds, plan.rounds)
        trees, apart = -(-plan.rounds // tree), float(min(bound.min_separation, plan.rounds))
        most = bound.most(plan.rounds)
        inside = float(min(most, math.ceil(tree / apart)))
        return inside * (inside - 1) * apart**3 + trees * most * (inside * apart**2 + 1e4) + 1e4 * inside * apart**2

    def noise(self, plan: NoisePlan, first: int, end: int) -> RoundNoise:
        return TreeNoise(plan, first, end)

    def sensitivity_squared(self, plan: NoisePlan, generations: Generations) -> float:
        trees, epoch = Trees.of(plan), plan.participation.epoch
        if epoch is not None and epoch % (trees.restart_every or plan.rounds) == 0:
            return _once_an_epoch(trees, epoch, generations)
        sizes = [size for first, end in generations for size in trees.segments(first, end)]
        bound = plan.participation.bounded(last_round(generations))
        return tree_sensitivity_squared(sizes, bound.max_participations, bound.min_separation, trees.complete_trees)

    def node_variance(self, levels: np.ndarray) -> np.ndarray:
        """The variance of what stands for a node of each level in prefix sums."""
        return np.ones(len(levels))

    def prefix_variance(self, plan: NoisePlan) -> np.ndarray:
        levels = np.arange(plan.rounds.bit_length() + 1)
        of_node = self.node_variance(levels)
        variance, kept = [], 0.0
        trees = Trees.of(plan)
        sizes = trees.segments(0, plan.rounds)
        for number, size in enumerate(sizes):
            leaves = np.arange(1, size + 1)
            inside = (leaves[:, None] >> levels & 1) @ of_node
            if trees.complete_trees and number + 1 < len(sizes):
                inside[-1] = of_node[(size - 1).bit_length()]
            variance.append(kept + inside)
            kept += inside[-1]
        return np.concatenate(variance)


def _once_an_epoch(trees: Trees, rounds_per_epoch: int, generations: Generations) -> int:
    """No tree lies in two epochs, and a client is in one tree of an epoch, in one node of each of its levels."""
    levels: dict[int, int] = {}
    for first, end in generations:
        for size in trees.segments(first, end):
            height = (size - 1).bit_length() if trees.complete_trees else size.bit_length() - 1
            epoch = first // rounds_per_epoch
            levels[epoch] = max(levels.get(epoch, 0), height + 1)
            first += size
    return sum(levels.values())


MECHANISM = Tree()
