"""What is promised about how often, and how close together, one client takes part: accounting relies on nothing
else."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.balls_in_bins import MOST_BINS
from fedlm.fl_core.privacy.accounting.monte_carlo import RELIES_ON
from fedlm.fl_core.privacy.accounting.sampled_examples import MOST_EXAMPLES
from fedlm.models.arguments import check_fields


class SampledRounds(NamedTuple):
    """The rounds in which one client may be drawn, in secret."""

    rounds: int
    sampling_probability: float  # in each of them
    population: int | None = None  # how many there are to draw from, where rounds that are too large are cut
    most: int | None = None  # that such a round keeps
    examples: int | None = None  # of one client, where each of them is drawn by itself; None where all are together


class BinnedRounds(NamedTuple):
    """The rounds in which one client takes part for certain, once its bin has been drawn in secret."""

    rounds: int  # of a bin, at most
    bins: int


class SeparatedRounds(NamedTuple):
    """The rounds in which one client may be drawn, in secret, unless it was in one of those just before."""

    rounds: int
    releases: int  # of one round, at most
    sampling_probability: float
    separation: int


class BySampling:
    """Who takes part is drawn in secret, by which privacy is amplified."""

    sampled: ClassVar[bool] = True
    epoch: ClassVar[int | None] = None
    """Rounds of an epoch, in each of which a client takes part at most once; None where there are none."""
    relies_on: ClassVar[tuple[str, ...]] = ()
    """What else has to hold for the accounting of such sampling, in words."""

    @property
    def equal_parts(self) -> bool:
        """Whether the accounting needs parts of equal size."""
        return False

    def limits(self) -> None:
        """What can be held of a client by counting: nothing."""
        return None

    def bounded(self, rounds: int) -> "BoundedParticipation":
        """Refuse: nothing bounds how often a client takes part."""
        raise ConfigurationError("Poisson sampling is accounted round by round, not by a sensitivity")


class ByLimits:
    """How often, and when, a client takes part is limited, whoever chooses the rounds."""

    sampled: ClassVar[bool] = False
    epoch: ClassVar[int | None] = None
    equal_parts: ClassVar[bool] = False
    relies_on: ClassVar[tuple[str, ...]] = ()

    def allows(self, reach: int | None) -> bool:
        """See `PoissonParticipation.allows`: any noise."""
        return True

    def sampled_rounds(self, stretches: Sequence[tuple[int, int]]) -> None:
        """See `PoissonParticipation.sampled_rounds`: there are none."""
        return None


@dataclass(frozen=True)
class PoissonParticipation(BySampling):
    """Every client takes part in every round with the same probability, independently, and nobody learns who did.

    Attributes:
      sampling_probability: in each round of its part.
      cycle: of how many parts each client is in one, whatever its data; round t is for those of part `t mod cycle`.
    """

    kind: ClassVar[str] = "poisson"
    sampling_probability: float
    cycle: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.cycle < 1:
            raise ConfigurationError(f"{setting('cycle')} is {self.cycle}, but must be at least 1")
        _check_probability(self.sampling_probability)

    def sampled_rounds(self, stretches: Sequence[tuple[int, int]]) -> SampledRounds:
        """Describe the rounds in which one client may be drawn, of stretches from one round to before another."""
        return SampledRounds(self.most_eligible(stretches), self.sampling_probability)

    def apart(self, rounds: int) -> tuple[int, str]:
        """Say of how many rounds in a row, of so many in all, a client takes part in one at most, and by what."""
        return min(self.cycle, rounds), "parts that take turns (the rounds, where there are fewer)"

    def allows(self, reach: int | None) -> bool:
        """Say whether noise can be accounted by which a round's sum is spread over so many rounds, None for all that
        follow: it must have ended where the same clients may be drawn again."""
        return reach is not None and reach <= self.cycle

    def in_words(self, unit: str, time: str) -> str:
        """Say who takes part, of units by their noun, and when, by the noun of what updates are summed over."""
        drawn = f"independently with probability {self.sampling_probability:.6g}, in secret"
        if self.cycle == 1:
            return f"each {unit} takes part in each {time} {drawn}"
        return (
            f"{unit}s are in {self.cycle} parts that take turns, drawn whatever the data; each {unit} takes part only "
            f"in {time}s of its part, in each of them {drawn}"
        )

    def most_eligible(self, stretches: Sequence[tuple[int, int]]) -> int:
        """Count the rounds in which one client may be drawn, of stretches from one round to before another."""
        return _most_turns(self.cycle, stretches)


def _check_probability(probability: float) -> None:
    if not 0 < probability <= 1:
        raise ConfigurationError(f"{setting('sampling_probability')} is {probability}, but must lie in (0, 1]")


def _most_turns(parts: int, stretches: Sequence[tuple[int, int]]) -> int:
    """Count the rounds of one of the parts that take turns, at most."""
    some = range(min(parts, max((end for _, end in stretches), default=1)))
    return max(sum(len(range(first + (part - first) % parts, end, parts)) for first, end in stretches) for part in some)


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

    def sampled_rounds(self, stretches: Sequence[tuple[int, int]]) -> SampledRounds:
        return super().sampled_rounds(stretches)._replace(population=self.population, most=self.most)

    def in_words(self, unit: str, time: str) -> str:
        return (
            f"{super().in_words(unit, time)}; if more than {self.most} are drawn, only {self.most} of them take part, "
            "chosen uniformly at random"
        )


@dataclass(frozen=True)
class BallsInBinsParticipation(BySampling):
    """Every client is in one of the bins, drawn once for all, uniformly and independently, and nobody learns which;
    round t is for all clients of bin `t mod bins` (Choquette-Choo et al. 2024, "Near-exact privacy amplification for
    matrix mechanisms").

    Attributes:
      bins: b, how many there are.
    """

    kind: ClassVar[str] = "balls_in_bins"
    relies_on: ClassVar[tuple[str, ...]] = (RELIES_ON,)
    bins: int

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.bins <= MOST_BINS:
            raise ConfigurationError(f"there are {self.bins} bins, but must be between 1 and {MOST_BINS:,}")

    def bounded(self, rounds: int) -> "BoundedParticipation":
        """What holds whichever bin a client is in."""
        return BoundedParticipation(-(-rounds // self.bins), self.bins)

    def sampled_rounds(self, stretches: Sequence[tuple[int, int]]) -> BinnedRounds:
        """Describe the rounds of one bin, of stretches from one round to before another."""
        return BinnedRounds(_most_turns(self.bins, stretches), self.bins)

    def apart(self, rounds: int) -> tuple[int, str]:
        """See `PoissonParticipation.apart`."""
        return min(self.bins, rounds), "bins (the rounds, where there are fewer)"

    def allows(self, reach: int | None) -> bool:
        """See `PoissonParticipation.allows`: a round's sum is spread over the turns of so many bins that the bins are a
        multiple of it."""
        return reach is not None and self.bins % reach == 0

    def in_words(self, unit: str, time: str) -> str:
        """See `PoissonParticipation.in_words`."""
        return (
            f"each {unit} is in one of {self.bins} bins, drawn once, uniformly and independently, in secret; each "
            f"{time} is for all {unit}s of one bin, and bins take turns"
        )


@dataclass(frozen=True)
class MinSeparationParticipation(BySampling):
    """Every client takes part in a round with the same probability, independently, unless it was in one of the rounds
    just before, and nobody learns who did (Dong and Ganesh 2026, "Privacy amplification for BandMF via b-min-sep
    subsampling"). It begins as if such rounds had gone before, so that all rounds are alike.

    Attributes:
      sampling_probability: p, of who was in none of the b - 1 rounds before.
      min_separation: b.
    """

    kind: ClassVar[str] = "min_separation"
    relies_on: ClassVar[tuple[str, ...]] = (RELIES_ON,)
    sampling_probability: float
    min_separation: int

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_separation < 1:
            raise ConfigurationError(f"{setting('min_separation')} is {self.min_separation}, but must be at least 1")
        _check_probability(self.sampling_probability)

    def bounded(self, rounds: int) -> "BoundedParticipation":
        """What holds whoever is drawn."""
        return BoundedParticipation(-(-rounds // self.min_separation), self.min_separation)

    def sampled_rounds(self, stretches: Sequence[tuple[int, int]]) -> SeparatedRounds:
        """Describe the rounds in which one client may be drawn, of stretches from one round to before another."""
        end = max((end for _, end in stretches), default=0)
        releases = max((sum(first <= one < stop for first, stop in stretches) for one, _ in stretches), default=0)
        return SeparatedRounds(end, releases, self.sampling_probability, self.min_separation)

    def apart(self, rounds: int) -> tuple[int, str]:
        """See `PoissonParticipation.apart`."""
        return min(self.min_separation, rounds), "min-separation (the rounds, where there are fewer)"

    def allows(self, reach: int | None) -> bool:
        """See `PoissonParticipation.allows`."""
        return reach is not None and reach <= self.min_separation

    def in_words(self, unit: str, time: str) -> str:
        """See `PoissonParticipation.in_words`."""
        return (
            f"each {unit} takes part in each {time} independently with probability {self.sampling_probability:.6g}, in "
            f"secret, unless it took part in one of the {self.min_separation - 1} {time}s before; it begins as if "
            f"such {time}s had gone before"
        )


@dataclass(frozen=True)
class ExamplesParticipation(BySampling):
    """Every example is in every round with the same probability, independently, and nobody learns which are; a client
    has no more than so many, each clipped by itself, and no example is of two clients (Charles et al. 2024,
    "Fine-tuning large language models with user-level differential privacy").

    Attributes:
      sampling_probability: q, of each example in each round.
      examples: K, the most that one client has.
    """

    kind: ClassVar[str] = "examples"
    sampling_probability: float
    examples: int

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.examples <= MOST_EXAMPLES:
            raise ConfigurationError(
                f"{setting('examples_per_user')} is {self.examples}, but must be at least 1, and {MOST_EXAMPLES} at "
                "most"
            )
        _check_probability(self.sampling_probability)

    def sampled_rounds(self, stretches: Sequence[tuple[int, int]]) -> SampledRounds:
        """See `PoissonParticipation.sampled_rounds`."""
        rounds = sum(end - first for first, end in stretches)
        return SampledRounds(rounds, self.sampling_probability, examples=self.examples)

    def apart(self, rounds: int) -> tuple[int, str]:
        """See `PoissonParticipation.apart`."""
        return 1, "rounds in a row"

    def allows(self, reach: int | None) -> bool:
        """See `PoissonParticipation.allows`: only noise that is independent between rounds."""
        return reach == 1

    def in_words(self, unit: str, time: str) -> str:
        """See `PoissonParticipation.in_words`."""
        read = "1 example" if self.examples == 1 else f"{self.examples} examples"
        return (
            f"training reads at most {read} of one {unit}, and none that is of two; each takes part in each {time} "
            f"independently with probability {self.sampling_probability:.6g}, in secret"
        )


@dataclass(frozen=True)
class BoundedParticipation(ByLimits):
    """A client takes part at most so often, and not again within so many rounds, whoever chooses the rounds.

    Attributes:
      max_participations: k, over the whole run; None for as often as the separation allows.
      min_separation: b, the least difference between the numbers of two rounds of a client: 1 allows adjacent rounds.
    """

    kind: ClassVar[str] = "bounded"
    max_participations: int | None = None
    min_separation: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_participations", "min_separation"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{setting(name)} is {value}, but must be at least 1")

    def bounded(self, rounds: int) -> "BoundedParticipation":
        """What is promised of so many rounds, wherever they begin."""
        return self

    def apart(self, rounds: int) -> tuple[int, str]:
        """See `PoissonParticipation.apart`."""
        limit = rounds if self.most(rounds) == 1 else min(self.min_separation, rounds)
        return limit, "min-separation (the rounds, where a client takes part only once)"

    def limits(self) -> "BoundedParticipation":
        """What can be held of a client by counting."""
        return self

    def may(self, before: Sequence[int], number: int) -> bool:
        """Say whether a client that took part in these rounds may take part in a later one."""
        apart = not before or number - before[-1] >= self.min_separation
        return apart and (self.max_participations is None or len(before) < self.max_participations)

    def in_words(self, unit: str, time: str) -> str:
        """See `PoissonParticipation.in_words`."""
        most, apart = self.max_participations, self.min_separation
        differing = f"whose numbers differ by at least {apart}"
        if most is None:
            return f"a client takes part in {'any number of rounds' if apart == 1 else f'rounds {differing}'}"
        often = f"a client takes part in at most {_rounds(most)}"
        return often if 1 in (most, apart) else f"{often}, {differing}"

    def most(self, rounds: int) -> int:
        """Count the rounds, of so many, that one client can take part in."""
        fitting = -(-rounds // self.min_separation)
        return fitting if self.max_participations is None else min(fitting, self.max_participations)


class RealisedParticipation(NamedTuple):
    """How often, and how close together, clients took part: for whoever runs the training, since it was counted without
    noise."""

    clients: int  # that took part at all
    max_participations: int  # of one client, 0 where nobody took part
    min_separation: int | None  # between two rounds of one client; None where nobody took part twice

    @staticmethod
    def of(rounds: Iterable[Sequence[int]]) -> "RealisedParticipation":
        """Count the rounds of each client, in their order."""
        taken = [one for one in rounds if one]
        gaps = (later - earlier for one in taken for earlier, later in itertools.pairwise(one))
        return RealisedParticipation(len(taken), max(map(len, taken), default=0), min(gaps, default=None))

    def beside(self, planned: "BoundedParticipation", rounds: int) -> dict[str, Any]:
        """Put it beside what is promised of so many rounds: `planned` and `realised`, JSON-able."""
        promised = {"max_participations": planned.most(rounds), "min_separation": planned.min_separation}
        return {"planned": promised, "realised": self._asdict()}


def participation_in_words(participation: dict[str, Any]) -> str:
    """Say what `RealisedParticipation.beside` put together."""
    planned, realised = participation["planned"], participation["realised"]
    most = f"a client took part in at most {_rounds(realised['max_participations'])}"
    said = f"{most} (the plan allows {planned['max_participations']})"
    if realised["min_separation"] is None:
        return said
    differing = f"in rounds whose numbers differ by at least {realised['min_separation']}"
    return f"{said}, {differing} (the plan asks for {planned['min_separation']})"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


@dataclass(frozen=True)
class EpochParticipation(ByLimits):
    """A client takes part at most once in each epoch; epochs are consecutive rounds, from round 0.

    Attributes:
      rounds_per_epoch: how many rounds an epoch has.
    """

    kind: ClassVar[str] = "epochs"
    rounds_per_epoch: int

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self.rounds_per_epoch

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rounds_per_epoch < 1:
            raise ConfigurationError(f"rounds_per_epoch is {self.rounds_per_epoch}, but must be at least 1")

    def bounded(self, rounds: int) -> BoundedParticipation:
        """What still holds of the first so many rounds when the places of epochs are forgotten."""
        return BoundedParticipation(-(-rounds // self.rounds_per_epoch), 1)

    def apart(self, rounds: int) -> tuple[int, str]:
        """See `PoissonParticipation.apart`."""
        return self.bounded(rounds).apart(rounds)

    def limits(self) -> "EpochParticipation":
        """What can be held of a client by counting."""
        return self

    def may(self, before: Sequence[int], number: int) -> bool:
        """Say whether a client that took part in these rounds may take part in a later one."""
        return not before or before[-1] // self.rounds_per_epoch < number // self.rounds_per_epoch

    def in_words(self, unit: str, time: str) -> str:
        """See `PoissonParticipation.in_words`."""
        return f"a client takes part at most once in each epoch of {_rounds(self.rounds_per_epoch)}"


Participation = (
    PoissonParticipation
    | BallsInBinsParticipation
    | MinSeparationParticipation
    | ExamplesParticipation
    | BoundedParticipation
    | EpochParticipation
)
_KINDS: dict[str, Any] = {
    one.kind: one
    for one in (
        PoissonParticipation,
        TruncatedPoissonParticipation,
        BallsInBinsParticipation,
        MinSeparationParticipation,
        ExamplesParticipation,
        BoundedParticipation,
        EpochParticipation,
    )
}


def participation_as_json(participation: Participation) -> dict[str, Any]:
    """Make a JSON-able dictionary, which `participation_from_json` takes."""
    return {"kind": participation.kind, **asdict(participation)}


def participation_from_json(record: dict[str, Any]) -> Participation:
    """Undo `participation_as_json`; raises KeyError or TypeError where it is none."""
    fields = dict(record)
    return _KINDS[fields.pop("kind")](**fields)
