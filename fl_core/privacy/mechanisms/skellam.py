"""Noise that clients add, each a share, to integers whose sum alone the server is to see (distributed differential
privacy), and the first such: Skellam noise (Agarwal, Kairouz and Liu 2021)."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedlm.fedlm_client.distributed_noise.bounds import lattice_scale, padded
from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fedlm_client.distributed_noise.noise_tables import TABLE_ERROR, NoiseKind
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, Range
from fedlm.fl_core.privacy.accounting.distributed_noise import RenyiEvent, skellam_divergences
from fedlm.fl_core.privacy.mechanisms.gaussian import GaussianNoise
from fedlm.fl_core.privacy.mechanisms.interface import Generations, Mechanism, NoisePlan, last_round
from fedlm.fl_core.privacy.participation.limits import Participation

LEAST_LATTICE_BITS, MOST_LATTICE_BITS = 16, 20
_MOST_COHORT = 10**6
LatticeBits = Annotated[int, Range(least=LEAST_LATTICE_BITS, most=MOST_LATTICE_BITS)]


@dataclass(frozen=True, kw_only=True)
class DistributedSettings:
    """Noise that is added by clients."""

    lattice_bits: LatticeBits = 20
    """Bits of a number that a client sends. Fewer make the numbers coarser, which costs noise."""
    least_survivors: Count | None = None
    """Clients of a round whose noise suffices. A round with fewer is given up. If not given, all of the cohort."""


@dataclass(frozen=True, kw_only=True)
class DistributedOptions(DistributedSettings):
    """The same, and what it follows from."""

    cohort_size: Count | None = None
    """Clients of a round; needed."""
    coordinates: Count | None = None
    """Numbers of an update; needed."""


class Sizes(NamedTuple):
    """What a plan's coefficients mean, all whole numbers."""

    bits: int
    cohort: int  # clients of a round
    survivors: int  # of them, at least, whose noise is in the sum
    coordinates: int  # numbers of an update


class Distributed(Mechanism):
    """Noise of clients, fresh in every round. The noise multiplier is that of the sum with the fewest survivors."""

    kind: ClassVar[NoiseKind]
    settings = DistributedSettings
    options = DistributedOptions
    distributed = True

    def options_of(self, settings: Any) -> DistributedOptions:
        return DistributedOptions(lattice_bits=settings.lattice_bits, least_survivors=settings.least_survivors)

    def sized(self, options: Any, planned: Any) -> Any:
        sizes = {"cohort_size": planned.cohort_size, "coordinates": planned.coordinates}
        least = options.least_survivors if planned.survivors is None else planned.survivors
        return replace(options, **sizes, least_survivors=least)

    def coefficients(self, options: Any, rounds: int, participation: Participation) -> tuple[float, ...]:
        for name in ("cohort_size", "coordinates"):
            if getattr(options, name) is None:
                raise ConfigurationError(f"{setting(name)} is not given, but the noise of {self.name} depends on it")
        survivors = options.cohort_size if options.least_survivors is None else options.least_survivors
        if survivors > options.cohort_size:
            raise ConfigurationError(
                f"{setting('least_survivors')} is {survivors}, but must be no more than {setting('cohort_size')}, "
                f"{options.cohort_size}"
            )
        sizes = Sizes(options.lattice_bits, options.cohort_size, survivors, options.coordinates)
        return tuple(map(float, sizes))

    def check_coefficients(self, plan: NoisePlan) -> None:
        if len(plan.coefficients) != len(Sizes._fields) or any(one % 1 for one in plan.coefficients):
            raise ConfigurationError(f"the mechanism {self.name} with coefficients {plan.coefficients}")
        sizes = sizes_of(plan)
        fit = 1 <= sizes.survivors <= sizes.cohort <= _MOST_COHORT and sizes.coordinates >= 1
        if not (fit and LEAST_LATTICE_BITS <= sizes.bits <= MOST_LATTICE_BITS):
            raise ConfigurationError(f"the mechanism {self.name} with coefficients {plan.coefficients}")

    def lattice(self, plan: NoisePlan, clip_norm: float) -> Lattice:
        return lattice_of(sizes_of(plan), plan.noise_multiplier, clip_norm, self.kind)

    def noise(self, plan: NoisePlan, first: int, end: int) -> GaussianNoise:
        """Count rounds; what is drawn for them, clients draw."""
        return GaussianNoise(first, end)

    def sensitivity_squared(self, plan: NoisePlan, generations: Generations) -> float:
        participations = self._participations(plan, generations)
        lattice = self.lattice(plan, 1.0)
        return participations * (lattice.sensitivity()[1] / lattice.scale) ** 2

    def prefix_variance(self, plan: NoisePlan) -> np.ndarray:
        return np.arange(1, plan.rounds + 1, dtype=np.float64)

    def releases(self, plan: NoisePlan, generations: Generations) -> RenyiEvent:
        lattice, sizes = self.lattice(plan, 1.0), sizes_of(plan)
        divergences = tuple(self.divergences(lattice, sizes.survivors).tolist())
        drawn = sizes.cohort * lattice.dimension
        return RenyiEvent(divergences, drawn * TABLE_ERROR, self._participations(plan, generations))

    @abstractmethod
    def divergences(self, lattice: Lattice, survivors: int) -> np.ndarray:
        """Bound the Renyi divergences of a round's sum with the noise of so many clients."""

    @staticmethod
    def _participations(plan: NoisePlan, generations: Generations) -> int:
        rounds = sum(end - first for first, end in generations)
        return plan.participation.bounded(last_round(generations)).most(rounds)


def sizes_of(plan: NoisePlan) -> Sizes:
    """Read the coefficients of a plan with distributed noise."""
    return Sizes(*map(int, plan.coefficients))


def lattice_of(sizes: Sizes, noise_multiplier: float, clip_norm: float, kind: NoiseKind) -> Lattice:
    """Make the integers fine, and a client's share of the noise as large, as it needs for the noise of a sum."""
    deviation = clip_norm * noise_multiplier / math.sqrt(sizes.survivors)
    dimension = padded(sizes.coordinates)
    scale = lattice_scale(sizes.bits, sizes.cohort, dimension, clip_norm=clip_norm, deviation=deviation)
    return Lattice(sizes.coordinates, clip_norm, scale, sizes.bits, kind, (deviation * scale) ** 2)


class Skellam(Distributed):
    """The difference of two Poisson numbers."""

    name = "skellam"
    kind = "skellam"
    label = "of each client, Skellam"
    summary = "Skellam noise of each client, fresh in every round (distributed DP)"
    help = "each client adds a share of the noise, in integers, for sums with secure aggregation (distributed DP)"

    def divergences(self, lattice: Lattice, survivors: int) -> np.ndarray:
        return skellam_divergences(*lattice.sensitivity(), survivors * lattice.variance)


MECHANISM = Skellam()
