"""What is promised about how often, and how close together, one client takes part: accounting relies on nothing
else."""

from dataclasses import dataclass

from fedlm.fl_core.errors import ConfigurationError


@dataclass(frozen=True)
class PoissonParticipation:
    """Every client takes part in every round with the same probability, independently, and nobody learns who did."""

    sampling_probability: float

    def __post_init__(self) -> None:
        if not 0 < self.sampling_probability <= 1:
            raise ConfigurationError(f"sampling_probability is {self.sampling_probability}, but must lie in (0, 1]")

    def bounded(self, rounds: int) -> "BoundedParticipation":
        """Refuse: nothing bounds how often a client takes part."""
        raise ConfigurationError("Poisson sampling is accounted round by round, not by a sensitivity")


@dataclass(frozen=True)
class TruncatedPoissonParticipation(PoissonParticipation):
    """Poisson sampling of which rounds that are too large keep only a uniformly random part.

    Attributes:
      population: how many there are to sample from.
      most: that a round keeps.
    """

    population: int
    most: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.most <= self.population:
            raise ConfigurationError(
                f"truncated_batch_size is {self.most}, but must lie between 1 and {self.population}, as many as there "
                "are to sample from"
            )


@dataclass(frozen=True)
class BoundedParticipation:
    """A client takes part at most so often, and not again within so many rounds, whoever chooses the rounds.

    Attributes:
      max_participations: k, over the whole run; None for as often as the separation allows.
      min_separation: b, the least difference between the numbers of two rounds of a client: 1 allows adjacent rounds.
    """

    max_participations: int | None = None
    min_separation: int = 1

    def __post_init__(self) -> None:
        for name in ("max_participations", "min_separation"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}, but must be at least 1")

    def bounded(self, rounds: int) -> "BoundedParticipation":
        """What is promised of so many rounds, wherever they begin."""
        return self

    def most(self, rounds: int) -> int:
        """Count the rounds, of so many, that one client can take part in."""
        fitting = -(-rounds // self.min_separation)
        return fitting if self.max_participations is None else min(fitting, self.max_participations)


@dataclass(frozen=True)
class EpochParticipation:
    """A client takes part at most once in each epoch; epochs are consecutive rounds, from round 0.

    Attributes:
      rounds_per_epoch: how many rounds an epoch has.
    """

    rounds_per_epoch: int

    def __post_init__(self) -> None:
        if self.rounds_per_epoch < 1:
            raise ConfigurationError(f"rounds_per_epoch is {self.rounds_per_epoch}, but must be at least 1")

    def bounded(self, rounds: int) -> BoundedParticipation:
        """What still holds of the first so many rounds when the places of epochs are forgotten."""
        return BoundedParticipation(-(-rounds // self.rounds_per_epoch), 1)


Participation = PoissonParticipation | BoundedParticipation | EpochParticipation
