"""Participation that is drawn in secret, by which privacy is amplified."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.monte_carlo.balls_in_bins import BinnedEvent
from fedlm.fl_core.privacy.accounting.monte_carlo.epsilon_ladder import RELIES_ON
from fedlm.fl_core.privacy.accounting.monte_carlo.min_separation import SeparatedEvent
from fedlm.fl_core.privacy.accounting.release_events import ExamplesEvent, GaussianEvent
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, Participation, SampledSum
from fedlm.models.arguments import check_fields


@dataclass(frozen=True)
class PoissonParticipation(Participation):
    """Every client takes part in every round with the same probability, independently, and nobody learns who did.

    Attributes:
      sampling_probability: in each round of its part.
      cycle: of how many parts each client is in one, whatever its data; round t is for those of part `t mod cycle`.
    """

    kind: ClassVar[str] = "poisson"
    sampled: ClassVar[bool] = True
    sampling_probability: float
    cycle: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.cycle < 1:
            raise ConfigurationError(f"{setting('cycle')} is {self.cycle}, but must be at least 1")
        _check_probability(self.sampling_probability)

    def event(self, one: SampledSum, stretches: Sequence[tuple[int, int]]) -> GaussianEvent:
        return GaussianEvent(one.noise_multiplier, most_turns(self.cycle, stretches), self.sampling_probability)

    def apart(self, rounds: int) -> tuple[int, str]:
        return min(self.cycle, rounds), "parts that take turns (the rounds, where there are fewer)"

    def allows(self, reach: int | None) -> bool:
        return reach is not None and reach <= self.cycle

    def in_words(self, unit: str, time: str) -> str:
        drawn = f"independently with probability {self.sampling_probability:.6g}, in secret"
        if self.cycle == 1:
            return f"each {unit} takes part in each {time} {drawn}"
        return (
            f"{unit}s are in {self.cycle} parts that take turns, drawn whatever the data; each {unit} takes part only "
            f"in {time}s of its part, in each of them {drawn}"
        )


@dataclass(frozen=True)
class TruncatedPoissonParticipation(PoissonParticipation):
    """Poisson sampling of which rounds that are too large keep only a uniformly random part.

    Attributes:
      population: how many there are to sample from in a round.
      most: that a round keeps.
    """

    kind: ClassVar[str] = "truncated_poisson"
    population: int
    most: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1:
            raise ConfigurationError(f"{setting('truncated_batch_size')} is {self.most}, but must be at least 1")
        if self.population < 1:
            raise ConfigurationError(f"there are {self.population} to sample from, but must be at least 1")

    @property
    def equal_parts(self) -> bool:
        return self.cycle > 1

    def event(self, one: SampledSum, stretches: Sequence[tuple[int, int]]) -> GaussianEvent:
        whole = super().event(one, stretches)
        return replace(whole, population=self.population, most=self.most, one_more=one.one_more)

    def in_words(self, unit: str, time: str) -> str:
        return (
            f"{super().in_words(unit, time)}; if more than {self.most} are drawn, only {self.most} of them take part, "
            "chosen uniformly at random"
        )


@dataclass(frozen=True)
class BallsInBinsParticipation(Participation):
    """Every client is in one of the bins, drawn once for all, uniformly and independently, and nobody learns which;
    round t is for all clients of bin `t mod bins` (Choquette-Choo et al. 2024, "Near-exact privacy amplification for
    matrix mechanisms").

    Attributes:
      bins: b, how many there are.
    """

    kind: ClassVar[str] = "balls_in_bins"
    sampled: ClassVar[bool] = True
    relies_on: ClassVar[tuple[str, ...]] = (RELIES_ON,)
    bins: int

    def __post_init__(self) -> None:
        check_fields(self)
        BinnedEvent(1.0, 0, self.bins).check()

    def bounded(self, rounds: int) -> BoundedParticipation:
        return BoundedParticipation(-(-rounds // self.bins), self.bins)

    def event(self, one: SampledSum, stretches: Sequence[tuple[int, int]]) -> BinnedEvent:
        # To who learns the bin's number modulo the reach, nothing of other bins is left where a bin's sums are.
        return BinnedEvent(one.noise_multiplier, most_turns(self.bins, stretches), self.bins // one.reach)

    def apart(self, rounds: int) -> tuple[int, str]:
        return min(self.bins, rounds), "bins (the rounds, where there are fewer)"

    def allows(self, reach: int | None) -> bool:
        return reach is not None and self.bins % reach == 0

    def in_words(self, unit: str, time: str) -> str:
        return (
            f"each {unit} is in one of {self.bins} bins, drawn once, uniformly and independently, in secret; each "
            f"{time} is for all {unit}s of one bin, and bins take turns"
        )


@dataclass(frozen=True)
class MinSeparationParticipation(Participation):
    """Every client takes part in a round with the same probability, independently, unless it was in one of the rounds
    just before, and nobody learns who did (Dong and Ganesh 2026, "Privacy amplification for BandMF via b-min-sep
    subsampling"). It begins as if such rounds had gone before, so that all rounds are alike.

    Attributes:
      sampling_probability: p, of who was in none of the b - 1 rounds before.
      min_separation: b.
    """

    kind: ClassVar[str] = "min_separation"
    sampled: ClassVar[bool] = True
    relies_on: ClassVar[tuple[str, ...]] = (RELIES_ON,)
    sampling_probability: float
    min_separation: int

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_separation < 1:
            raise ConfigurationError(f"{setting('min_separation')} is {self.min_separation}, but must be at least 1")
        _check_probability(self.sampling_probability)

    def bounded(self, rounds: int) -> BoundedParticipation:
        return BoundedParticipation(-(-rounds // self.min_separation), self.min_separation)

    def event(self, one: SampledSum, stretches: Sequence[tuple[int, int]]) -> SeparatedEvent:
        end, bands = max((end for _, end in stretches), default=0), one.coefficients or (1.0,)
        return SeparatedEvent(one.noise_multiplier, end, self.sampling_probability, self.min_separation, bands)

    def apart(self, rounds: int) -> tuple[int, str]:
        return min(self.min_separation, rounds), "min-separation (the rounds, where there are fewer)"

    def allows(self, reach: int | None) -> bool:
        return reach is not None and reach <= self.min_separation

    def in_words(self, unit: str, time: str) -> str:
        return (
            f"each {unit} takes part in each {time} independently with probability {self.sampling_probability:.6g}, in "
            f"secret, unless it took part in one of the {self.min_separation - 1} {time}s before; it begins as if "
            f"such {time}s had gone before"
        )


@dataclass(frozen=True)
class ExamplesParticipation(Participation):
    """Every example is in every round with the same probability, independently, and nobody learns which are; a client
    has no more than so many, each clipped by itself, and no example is of two clients (Charles et al. 2024,
    "Fine-tuning large language models with user-level differential privacy").

    Attributes:
      sampling_probability: q, of each example in each round.
      examples: K, the most that one client has.
    """

    kind: ClassVar[str] = "examples"
    sampled: ClassVar[bool] = True
    sampling_probability: float
    examples: int

    def __post_init__(self) -> None:
        check_fields(self)
        _check_probability(self.sampling_probability)
        ExamplesEvent(1.0, 0, self.sampling_probability, self.examples).check()

    def event(self, one: SampledSum, stretches: Sequence[tuple[int, int]]) -> ExamplesEvent:
        rounds = sum(end - first for first, end in stretches)
        return ExamplesEvent(one.noise_multiplier, rounds, self.sampling_probability, self.examples)

    def apart(self, rounds: int) -> tuple[int, str]:
        return 1, "rounds in a row"

    def allows(self, reach: int | None) -> bool:
        return reach == 1

    def in_words(self, unit: str, time: str) -> str:
        read = "1 example" if self.examples == 1 else f"{self.examples} examples"
        return (
            f"training reads at most {read} of one {unit}, and none that is of two; each takes part in each {time} "
            f"independently with probability {self.sampling_probability:.6g}, in secret"
        )


def _check_probability(probability: float) -> None:
    if not 0 < probability <= 1:
        raise ConfigurationError(f"{setting('sampling_probability')} is {probability}, but must lie in (0, 1]")


def most_turns(parts: int, stretches: Sequence[tuple[int, int]]) -> int:
    """Count the rounds of one of the parts that take turns, at most."""
    some = range(min(parts, max((end for _, end in stretches), default=1)))
    return max(sum(len(range(first + (part - first) % parts, end, parts)) for first, end in stretches) for part in some)
