"""Which units are in the batch of a step: a pure function of a seed and the step."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.randomness import host_rng
from fedlm.simulations.pretraining.batches.privacy_units import Units


class Batches(Protocol):
    """Draws the units of every step."""

    def draw(self, step: int) -> NDArray[np.int64]:
        """Return the units of a step, each once: int64 [size]. Where that is private they are in a random order, so
        that one unit less is as if the last had its place: of the microbatches that a batch is cut into, it changes two
        at most. So are those of them that have something in common, which follows from each unit alone."""
        ...


@dataclass(frozen=True, eq=False)
class SeededBatches:
    """What all ways to draw batches depend on."""

    units: Units
    batch_size: int  # how many are in a batch, on average where batches differ in size
    seed: int | bytes = field(repr=False)  # not negative, or a secret; see `host_rng`

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.units.count:
            raise ConfigurationError(
                f"{setting('batch_size')} is {self.batch_size}, but must lie between 1 and the number of units, "
                f"{self.units.count} ({self.units.unit})"
            )
        if isinstance(self.seed, int) and self.seed < 0:
            raise ConfigurationError(f"{setting('seed')} is {self.seed}, but must not be negative")


@dataclass(frozen=True, eq=False)
class PoissonBatches(SeededBatches):
    """Every unit is in every batch independently with probability `batch_size / units.count`.

    The seed must stay secret: who knows it knows who is in a batch, and the amplification by sampling is lost.
    """

    @property
    def probability(self) -> float:
        """With which a unit is in a batch."""
        return self.batch_size / self.units.count

    def draw(self, step: int) -> NDArray[np.int64]:
        return self._draw(step, self.units.count)

    def _draw(self, step: int, most: int) -> NDArray[np.int64]:
        # Given their number, the units of a Poisson sample are a uniformly random subset, in any order; so is a random
        # part of it.
        rng = host_rng(self.seed, "Poisson batch", step)
        size = min(int(rng.binomial(self.units.count, self.probability)), most)
        return rng.choice(self.units.count, size, replace=False)


@dataclass(frozen=True, eq=False)
class TruncatedPoissonBatches(PoissonBatches):
    """Poisson batches, of which those that are too large are cut to a uniformly random subset.

    This is what `dp_accounting.TruncatedSubsampledGaussianDpEvent` assumes."""

    truncated_batch_size: int  # the most units in a batch

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncated_batch_size < self.batch_size:
            raise ConfigurationError(
                f"{setting('truncated_batch_size')} is {self.truncated_batch_size}, but must not be below "
                f"{setting('batch_size')}, {self.batch_size}"
            )

    def draw(self, step: int) -> NDArray[np.int64]:
        return self._draw(step, self.truncated_batch_size)


@dataclass(frozen=True, eq=False)
class ShuffledBatches(SeededBatches):
    """Batches of equal size, in which every unit is once an epoch; no privacy guarantee may be computed for them.

    Units that are left when no whole batch is are left out of the epoch, others in each.
    """

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self.units.count // self.batch_size

    def draw(self, step: int) -> NDArray[np.int64]:
        epoch, position = divmod(step, self.steps_per_epoch)
        first = position * self.batch_size
        return np.sort(_order(self.seed, epoch, self.units.count)[first : first + self.batch_size])


@lru_cache(maxsize=2)  # threads that prepare batches ahead may be at the end of one epoch and the start of the next
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return host_rng(seed, "epoch", epoch).permutation(count)
