"""The plan of a private run: all that its guarantee follows from, fixed before the first round."""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.participation import (
    BoundedParticipation,
    EpochParticipation,
    Participation,
    PoissonParticipation,
    TruncatedPoissonParticipation,
)

CLIENT = "client: all examples of one client, in all rounds"
Adjacency = Literal["add_or_remove", "zero_out"]
MechanismName = Literal["gaussian", "tree", "tree_honaker", "blt", "banded"]
LEDGER_FILE = "ledger.jsonl"
TREES = ("tree", "tree_honaker")
TOEPLITZ = ("blt", "banded")


@dataclass(frozen=True)
class PrivacyPlan:
    """What a private run does, and until when.

    Attributes:
      mechanism: how the noise of rounds hangs together.
      rounds: T, how many releases there will be at most.
      noise_multiplier: sigma, the standard deviation of one draw of noise in units of the clip norm.
      participation: what the sampler enforces.
      restart_every: a new tree begins after every so many rounds; None for a single one.
      complete_trees: whether a tree is completed to a power of two before the next begins, which lowers the noise
        that lasts.
      coefficients: of the banded Toeplitz matrix, or of a BLT as buffer decays followed by as many output scales.
      unit: whose presence is hidden: a noun, a colon, and what belongs to one.
      adjacency: which data sets are neighbours; only zero-out where participation is bounded.
    """

    mechanism: MechanismName
    rounds: int
    noise_multiplier: float
    participation: Participation
    restart_every: int | None = None
    complete_trees: bool = False
    coefficients: tuple[float, ...] = ()
    unit: str = CLIENT
    adjacency: Adjacency | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(MechanismName):
            raise ConfigurationError(f"mechanism is {self.mechanism!r}, but must be one of {get_args(MechanismName)}")
        if self.rounds < 1:
            raise ConfigurationError(f"rounds is {self.rounds}, but must be at least 1")
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise ConfigurationError(f"noise_multiplier is {self.noise_multiplier}, but must be positive and finite")
        if isinstance(self.participation, PoissonParticipation) and self.mechanism != "gaussian":
            raise ConfigurationError(
                f"the mechanism {self.mechanism} with Poisson sampling: no sound analysis of it is implemented, "
                "because amplification by sampling needs noise that is independent between rounds, and without it "
                "nothing bounds how often a client takes part. Take the mechanism gaussian, or the sampler "
                "min_separation or shuffled_epochs"
            )
        if self.mechanism not in TREES and (self.restart_every is not None or self.complete_trees):
            raise ConfigurationError(f"restarts and completion are of trees; the mechanism {self.mechanism} has none")
        if self.restart_every is not None and self.restart_every < 1:
            raise ConfigurationError(f"restart_every is {self.restart_every}, but must be at least 1")
        if self.complete_trees and self.restart_every is None:
            raise ConfigurationError("complete_trees does nothing without restart_every, since no tree comes after one")
        if (self.mechanism in TOEPLITZ) != bool(self.coefficients):
            raise ConfigurationError(f"the mechanism {self.mechanism} with {len(self.coefficients)} coefficients")
        sampled = isinstance(self.participation, PoissonParticipation)
        if self.adjacency is None:
            object.__setattr__(self, "adjacency", "add_or_remove" if sampled else "zero_out")
        elif self.adjacency == "add_or_remove" and not sampled:
            raise ConfigurationError(
                "adjacency is add_or_remove, but without Poisson sampling one more client would move all others; take "
                "zero_out"
            )

    def segments(self, first: int, end: int) -> list[int]:
        """Cut rounds at the restarts.

        Args:
          first: first round number.
          end: one more than the last.

        Returns:
          How many rounds each segment has; restarts lie at multiples of `restart_every`.
        """
        if self.restart_every is None:
            return [end - first] if end > first else []
        cuts = [first, *range((first // self.restart_every + 1) * self.restart_every, end, self.restart_every), end]
        return [after - before for before, after in itertools.pairwise(cuts) if after > before]

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary.

        Returns:
          What `from_json` takes.
        """
        record = dataclasses.asdict(self)
        record["participation"] = {"kind": _KIND_OF[type(self.participation)], **record["participation"]}
        return record | {"coefficients": list(self.coefficients)}

    @staticmethod
    def from_json(record: dict[str, Any]) -> "PrivacyPlan":
        """Undo `as_json`.

        Args:
          record: the dictionary.

        Returns:
          The plan.

        Raises:
          ConfigurationError: a field is missing, unknown or out of range.
        """
        try:
            participation = dict(record["participation"])
            kind = _KINDS[participation.pop("kind")]
            return PrivacyPlan(
                **record | {"participation": kind(**participation), "coefficients": tuple(record["coefficients"])}
            )
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"not a plan of a private run: {error}") from error


_KINDS: dict[str, Any] = {
    "poisson": PoissonParticipation,
    "truncated_poisson": TruncatedPoissonParticipation,
    "bounded": BoundedParticipation,
    "epochs": EpochParticipation,
}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}
