"""Batches of which none has a unit of the b - 1 before (Dong and Ganesh 2026, "Privacy amplification for BandMF via
b-min-sep subsampling", with a warm start)."""

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.randomness import host_rng
from fedlm.simulations.pretraining.batches.sampling import SeededBatches

_KEPT = 64  # last batches, for threads that prepare some ahead


class _Walk:
    """The steps so far: from which on each unit may be drawn again, and the last batches."""

    def __init__(self, seed: int | bytes, count: int, probability: float, separation: int):
        rng = host_rng(seed, "first turns")
        free = rng.random(count) < 1 / (1 + (separation - 1) * probability)
        self.step = 0
        self.free_from = np.where(free, 0, rng.integers(1, max(separation, 2), size=count))
        self.last: dict[int, NDArray[np.int64]] = {}


@dataclass(frozen=True, eq=False)
class MinSeparationBatches(SeededBatches):
    """Every unit that was in none of the b - 1 batches before is in a batch independently with a probability.

    It begins as if batches had gone before, so that all are as large on average. The seed must stay secret, as that of
    Poisson batches.
    """

    probability: float
    separation: int
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _walks: list[_Walk] = field(default_factory=list, repr=False)

    def draw(self, step: int) -> NDArray[np.int64]:
        with self._lock:
            if not self._walks or (step < self._walks[0].step and step not in self._walks[0].last):
                self._walks[:] = [_Walk(self.seed, self.units.count, self.probability, self.separation)]
            (walk,) = self._walks
            while walk.step <= step:
                self._go_on(walk)
            return walk.last[step]

    def _go_on(self, walk: _Walk) -> None:
        rng = host_rng(self.seed, "Poisson batch", walk.step)
        # Of a Poisson sample of all units those that may be drawn are one of these, in any order.
        size = int(rng.binomial(self.units.count, self.probability))
        sample = rng.choice(self.units.count, size, replace=False)
        batch = sample[walk.free_from[sample] <= walk.step]
        walk.free_from[batch] = walk.step + self.separation
        walk.last[walk.step] = batch
        walk.last.pop(walk.step - _KEPT, None)
        walk.step += 1
