"""The plan of a private run: all that its guarantee follows from, fixed before the first round."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.mechanisms.interface import NoisePlan
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.kinds import participation_as_json, participation_from_json
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.fl_core.privacy.promise.noise_cohort import NoiseCohort
from fedlm.models.arguments import check_fields

CLIENT = "client: all examples of one client, in all rounds"
ONE_DOCUMENT = "client: one document"
DOCUMENT_CLIENT = (
    f"{ONE_DOCUMENT}, in all rounds (the data set was imported without users: each document of a person is a client of "
    "its own, and the promise is per document, not per user)"
)
Adjacency = Literal["add_or_remove", "zero_out"]
_LEAST_NOISE, _MOST_NOISE = 1e-6, 1e9  # between which float32 holds the noise, and epsilon can be computed
LEDGER_FILE = "ledger.jsonl"


@dataclass(frozen=True)
class PrivacyPlan(NoisePlan):
    """What a private run does, and until when.

    Attributes:
      unit: whose presence is hidden: a noun, a colon, and what belongs to one.
      adjacency: which data sets are neighbours; only zero-out where participation is bounded.
      noise_cohort: where the noise is scaled as if of a larger cohort; then nothing is promised. `noise_multiplier` is
        what was added all the same.

    Example:
      >>> from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
      >>> bound = BoundedParticipation(max_participations=4)
      >>> plan = PrivacyPlan(mechanism="gaussian", rounds=100, noise_multiplier=4.0, participation=bound)
      >>> plan.adjacency
      'zero_out'
    """

    unit: str = CLIENT
    adjacency: Adjacency | None = None
    noise_cohort: NoiseCohort | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_noise_cohort()
        if self.mechanism not in MECHANISMS:
            raise ConfigurationError(
                f"{setting('mechanism')} is {self.mechanism!r}, but must be one of {tuple(MECHANISMS)}"
            )
        mechanism = MECHANISMS[self.mechanism]
        mechanism.check_rounds(self.rounds)
        if not _LEAST_NOISE <= self.noise_multiplier <= _MOST_NOISE:
            raise ConfigurationError(
                f"{setting('noise_multiplier')} is {self.noise_multiplier}, but must be positive and finite, between "
                f"{_LEAST_NOISE:g} and {_MOST_NOISE:g}"
            )
        sampled = self.participation.sampled
        if not self.participation.allows(mechanism.reach(self)):
            raise ConfigurationError(
                f"there is no sound analysis of the mechanism {self.mechanism} with Poisson sampling. Amplification by "
                "sampling needs noise that is independent between the rounds of a client. Without amplification "
                "nothing bounds how often a client takes part. Take the mechanism "
                f"{' or '.join(independent_mechanisms())}, or the sampler min_separation or shuffled_epochs"
            )
        mechanism.check_plan(self)
        if self.adjacency is None:
            object.__setattr__(self, "adjacency", "add_or_remove" if sampled else "zero_out")
        elif self.adjacency == "add_or_remove" and not sampled:
            raise ConfigurationError(
                f"{setting('adjacency')} is add_or_remove, but without Poisson sampling one more client would move all "
                "others; take zero_out"
            )

        if self.adjacency == "add_or_remove" and self.participation.equal_parts:
            raise ConfigurationError(
                "truncated batches with bands are accounted for parts of equal size, which one more unit would change; "
                "give the adjacency zero_out, or the sampling poisson"
            )

    def _check_noise_cohort(self) -> None:
        cohort = self.noise_cohort
        if cohort is not None and self.noise_multiplier != cohort.scaled_multiplier:
            raise ConfigurationError(
                f"{setting('noise_multiplier')} is {self.noise_multiplier}, but noise as if of {cohort.planned} "
                f"clients must have {cohort.scaled_multiplier}"
            )

    def as_if_of(self, simulated: int, planned: int) -> "PrivacyPlan":
        """Scale the noise on the sum of so many clients as if more were planned to take part; then it promises nothing.

        Raises:
          ConfigurationError: no more are planned.
        """
        cohort = NoiseCohort(simulated, planned, self.noise_multiplier)
        return dataclasses.replace(self, noise_multiplier=cohort.scaled_multiplier, noise_cohort=cohort)

    def as_planned(self) -> "PrivacyPlan":
        """Undo `as_if_of`: the plan of the deployment that noise was scaled for; the plan itself where it was not."""
        if self.noise_cohort is None:
            return self
        return dataclasses.replace(self, noise_multiplier=self.noise_cohort.noise_multiplier, noise_cohort=None)

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary, which `from_json` takes."""
        record: dict[str, Any] = {}
        for name, value in dataclasses.asdict(self).items():
            record |= {name: value} if name != "own" else _OWN | (value or {})
        if self.noise_cohort is None:
            del record["noise_cohort"]
        record["participation"] = participation_as_json(self.participation)
        return record | {"coefficients": list(self.coefficients)}

    @staticmethod
    def from_json(record: dict[str, Any]) -> "PrivacyPlan":
        """Undo `as_json`.

        Raises:
          ConfigurationError: a field is missing, unknown or out of range.
        """
        try:
            record = record | {
                "participation": participation_from_json(record["participation"]),
                "coefficients": tuple(record["coefficients"]),
            }
            own = {name: record.pop(name) for name in _OWN if name in record}
            if own != {name: _OWN[name] for name in own}:
                record |= {"own": _own_of(record["mechanism"], own)}
            if (cohort := record.get("noise_cohort")) is not None:
                record |= {"noise_cohort": NoiseCohort(**cohort)}
            return PrivacyPlan(**record)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"not a plan of a private run: {error}") from error


_OWN: dict[str, Any] = {
    name: value
    for mechanism in MECHANISMS.values()
    if mechanism.own_plan is not None
    for name, value in dataclasses.asdict(mechanism.own_plan()).items()
}
"""What plans of some mechanisms alone have, and what those of the others say of it in JSON."""


def _own_of(mechanism: str, own: dict[str, Any]) -> Any:
    kind = MECHANISMS[mechanism].own_plan if mechanism in MECHANISMS else None
    if kind is None:
        raise ConfigurationError(f"the mechanism {mechanism!r} has no {', '.join(own)} of its own, but {own} is given")
    return kind(**own)


def independent_mechanisms() -> list[str]:
    """Name the mechanisms that Poisson sampling may be used with."""
    return [name for name, mechanism in MECHANISMS.items() if mechanism.independent_rounds]


def plan_noise(
    mechanism: str,
    rounds: int,
    participation: Participation,
    *,
    options: Any = None,
    known: PrivacyPlan | None = None,
    unit: str = CLIENT,
) -> Callable[[float], PrivacyPlan]:
    """Plan all but the amount of noise.

    Args:
      mechanism: its name.
      rounds: of the run.
      participation: what the sampler enforces.
      options: the mechanism's `options`; its defaults where None.
      known: the plan of a run that goes on, whose coefficients need not be chosen again.
      unit: whose presence is hidden.

    Returns:
      From a noise multiplier to the plan.

    Raises:
      ConfigurationError: there is no plan for these.
    """
    described = MECHANISMS[mechanism]
    described.check_rounds(rounds)
    options = described.options() if options is None else options
    if known is not None and (known.mechanism, known.rounds, known.participation) == (
        mechanism,
        rounds,
        participation,
    ):
        coefficients = known.coefficients
    else:
        coefficients = described.coefficients(options, rounds, participation)
    return functools.partial(
        PrivacyPlan,
        mechanism,
        rounds,
        participation=participation,
        coefficients=coefficients,
        unit=unit,
        **described.plan_fields(options),
    )
