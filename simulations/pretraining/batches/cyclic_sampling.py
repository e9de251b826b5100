"""Batches of banded noise: units are in parts that take turns (Choquette-Choo et al. 2023, arXiv 2306.08153,
algorithm 2)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.privacy.promise.central_plan import slots_of_part
from fedlm.fl_core.randomness import host_rng
from fedlm.simulations.pretraining.batches.sampling import SeededBatches


@dataclass(frozen=True, eq=False)
class CyclicPoissonBatches(SeededBatches):
    """Step t draws each unit of part `t mod cycle` independently with a probability, and no other.

    Which part a unit is in is drawn too, whatever its data. The seed must stay secret, as that of Poisson batches.
    """

    probability: float
    cycle: int
    # Parts with as many places each, of which the last stay empty; else every unit draws its part independently of all
    # others, so that one more moves nobody.
    equal_parts: bool = False
    truncated_batch_size: int | None = None  # of a larger batch a uniformly random part is kept; None for all

    def draw(self, step: int) -> NDArray[np.int64]:
        part = _parts(self.seed, self.units.count, self.cycle, self.equal_parts)[step % self.cycle]
        rng = host_rng(self.seed, "Poisson batch", step)
        size = int(rng.binomial(len(part), self.probability))
        if self.truncated_batch_size is not None:
            size = min(size, self.truncated_batch_size)
        drawn = part[rng.choice(len(part), size, replace=False)]
        return drawn[drawn < self.units.count]


@lru_cache(maxsize=2)
def _parts(seed: int | bytes, count: int, cycle: int, equal: bool) -> list[NDArray[np.int64]]:
    rng = host_rng(seed, "parts that take turns")
    if equal:
        places = rng.permutation(slots_of_part(count, cycle) * cycle)
        return list(places.reshape(cycle, -1))
    part_of = rng.integers(cycle, size=count)
    return np.split(np.argsort(part_of, kind="stable"), np.cumsum(np.bincount(part_of, minlength=cycle))[:-1])
