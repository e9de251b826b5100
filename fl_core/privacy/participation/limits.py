"""Participation of clients, and what of it is held by counting: how often, and when, a client takes part is limited,
whoever chooses the rounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.release_events import Event
from fedlm.models.arguments import check_fields


class SampledSum(NamedTuple):
    """The sum of one round, as it is to a client that was drawn for it."""

    noise_multiplier: float  # of the noise on all releases together, in units of what the client moves them by
    reach: int  # how many rounds in a row it is spread over
    coefficients: tuple[float, ...]  # of the noise's strategy; none where rounds are independent
    one_more: bool  # whether a neighbouring data set may have one more client, rather than one of zeros

    def drawn_once(self, stretches: Sequence[tuple[int, int]]) -> "tuple[SampledSum, Sequence[tuple[int, int]]]":
        """Give stretches of which no two share a round, and a sum that is no more private: who takes part in a round is
        drawn once for all its releases, which count as one with less noise."""
        often = max(sum(first <= start < end for first, end in stretches) for start, _ in stretches)
        if often <= 1:
            return self, stretches
        return self._replace(noise_multiplier=self.noise_multiplier / math.sqrt(often)), [
            (min(first for first, _ in stretches), max(end for _, end in stretches))
        ]


@dataclass(frozen=True)
class Participation:
    """What is promised of every client. This class is that where limits alone are."""

    kind: ClassVar[str]
    sampled: ClassVar[bool] = False
    """Whether who takes part is drawn in secret, by which privacy is amplified."""
    relies_on: ClassVar[tuple[str, ...]] = ()
    """What else has to hold for the accounting of such sampling, in words."""

    @property
    def epoch(self) -> int | None:
        """Rounds of an epoch, in each of which a client takes part at most once; None where there are none."""
        return None

    @property
    def equal_parts(self) -> bool:
        """Whether the accounting needs parts of equal size."""
        return False

    def bounded(self, rounds: int) -> "BoundedParticipation":
        """Say what holds of the first so many rounds, whatever is drawn, and wherever epochs begin.

        Raises:
          ConfigurationError: nothing bounds how often a client takes part.
        """
        raise ConfigurationError("Poisson sampling is accounted round by round, not by a sensitivity")

    def apart(self, rounds: int) -> tuple[int, str]:
        """Say of how many rounds in a row, of so many in all, a client takes part in one at most, and by what."""
        raise NotImplementedError

    def allows(self, reach: int | None) -> bool:
        """Say whether noise can be accounted by which a round's sum is spread over so many rounds, None for all that
        follow: where sampling amplifies, it must have ended where the same clients may be drawn again."""
        return True

    def event(self, one: SampledSum, stretches: Sequence[tuple[int, int]]) -> Event:
        """Describe what sampling lets one client be in, of stretches from one round to before another."""
        raise NotImplementedError

    def limits(self) -> "BoundedParticipation | EpochParticipation | None":
        """Say what can be held of a client by counting; None where nothing can."""
        return None

    def in_words(self, unit: str, time: str) -> str:
        """Say who takes part, of units by their noun, and when, by the noun of what updates are summed over."""
        raise NotImplementedError


@dataclass(frozen=True)
class BoundedParticipation(Participation):
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
        return self

    def apart(self, rounds: int) -> tuple[int, str]:
        limit = rounds if self.most(rounds) == 1 else min(self.min_separation, rounds)
        return limit, "min-separation (the rounds, where a client takes part only once)"

    def limits(self) -> "BoundedParticipation":
        return self

    def may(self, before: Sequence[int], number: int) -> bool:
        """Say whether a client that took part in these rounds may take part in a later one."""
        apart = not before or number - before[-1] >= self.min_separation
        return apart and (self.max_participations is None or len(before) < self.max_participations)

    def in_words(self, unit: str, time: str) -> str:
        most, apart = self.max_participations, self.min_separation
        differing = f"whose numbers differ by at least {apart}"
        if most is None:
            return f"a client takes part in {'any number of rounds' if apart == 1 else f'rounds {differing}'}"
        often = f"a client takes part in at most {rounds_in_words(most)}"
        return often if 1 in (most, apart) else f"{often}, {differing}"

    def most(self, rounds: int) -> int:
        """Count the rounds, of so many, that one client can take part in."""
        fitting = -(-rounds // self.min_separation)
        return fitting if self.max_participations is None else min(fitting, self.max_participations)


@dataclass(frozen=True)
class EpochParticipation(Participation):
    """A client takes part at most once in each epoch; epochs are consecutive rounds, from round 0.

    Attributes:
      rounds_per_epoch: how many rounds an epoch has.
    """

    kind: ClassVar[str] = "epochs"
    rounds_per_epoch: int

    @property
    def epoch(self) -> int:
        return self.rounds_per_epoch

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rounds_per_epoch < 1:
            raise ConfigurationError(f"rounds_per_epoch is {self.rounds_per_epoch}, but must be at least 1")

    def bounded(self, rounds: int) -> BoundedParticipation:
        return BoundedParticipation(-(-rounds // self.rounds_per_epoch), 1)

    def apart(self, rounds: int) -> tuple[int, str]:
        return self.bounded(rounds).apart(rounds)

    def limits(self) -> "EpochParticipation":
        return self

    def may(self, before: Sequence[int], number: int) -> bool:
        """Say whether a client that took part in these rounds may take part in a later one."""
        return not before or before[-1] // self.rounds_per_epoch < number // self.rounds_per_epoch

    def in_words(self, unit: str, time: str) -> str:
        return f"a client takes part at most once in each epoch of {rounds_in_words(self.rounds_per_epoch)}"


def rounds_in_words(count: int) -> str:
    """Count rounds in words."""
    return "1 round" if count == 1 else f"{count} rounds"
