"""What a noise mechanism says of itself, and what its noise does round after round."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.distributed_noise import RenyiEvent
from fedlm.fl_core.privacy.noise.noise_source import Draw
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.models.base import Params

Generations = Sequence[tuple[int, int]]
"""From which round to before which noise went on undisturbed, one pair for each secret."""


class HorizonError(ConfigurationError):
    """A run was to go on past its planned last round."""


def check_horizon(number: npt.ArrayLike, end: int) -> int:
    """Refuse noise for a round beyond the last planned one, since nothing accounts for it; give its number.

    Raises:
      HorizonError: it is not below the end.
    """
    number = int(number)  # type: ignore[arg-type]
    if number >= end:
        raise HorizonError(
            f"round {number} lies beyond the {end} rounds that this run's privacy was planned and accounted for; its "
            "noise ends there. Begin a new run, with a plan of its own, from the last checkpoint"
        )
    return number


@dataclass(frozen=True)
class NoisePlan:
    """All that noise follows from, beside its secret.

    Attributes:
      mechanism: how the noise of rounds hangs together, by its name.
      rounds: T, how many releases there will be at most.
      noise_multiplier: sigma, the standard deviation of one draw of noise in units of the clip norm.
      participation: what the sampler enforces.
      own: what only this mechanism has, made by `own_plan` of it in `MECHANISMS`; None where nothing is said.
      coefficients: what the mechanism chose for these rounds and this participation; it alone knows what they mean.
    """

    mechanism: str
    rounds: int
    noise_multiplier: float
    participation: Participation
    own: Any = None
    coefficients: tuple[float, ...] = ()


class RoundNoise(Protocol):
    """Noise for the sums of rounds, in units of one draw's standard deviation.

    Round by round, `next` gives what to add to that round's sum. Noise of different rounds may be correlated: added up
    over rounds it is meant to be small. It covers the rounds from `first` to before `end`; asked for more it refuses.
    """

    def init(self, like: Params) -> Any:
        """Make the state before the first round, a pytree, for sums of the structure and shapes of `like`."""
        ...

    def next(self, state: Any, draw: Draw) -> tuple[Params, Any]:
        """Make the noise of the next round, and the state after it; a HorizonError after the last planned round.

        `draw` is the noise of this generation's secret; no name may be given two meanings.
        """
        ...

    def durable(self, state: Any) -> Any:
        """Say what of a state has to be kept on disk, as a pytree of arrays."""
        ...

    def restore(self, durable: Any, like: Params, draw: Draw) -> Any:
        """Make the state again from what is `durable` of it."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """What a mechanism has that has no settings of its own."""


class Mechanism(ABC):
    """A noise mechanism: everything that sets it apart from the others.

    Attributes:
      name: in `--privacy`, plans and ledgers; also that of its file.
      label: in plots.
      summary: what it is, for the list of `fedlm account`.
      help: what it is, for the help of `--privacy`.
      settings: dataclass of the settings of a run that do nothing with other mechanisms; they become flags.
      options: dataclass of the flags of `fedlm account`, as far as other mechanisms have none of these.
      own_plan: frozen dataclass of what plans of this mechanism alone have, of fields with defaults whose names are no
        other mechanism's; None where they have nothing.
      independent_rounds: whether the noise of a round says nothing of other rounds', which amplification by sampling
        needs.
      most_rounds: that a plan may have; None for any number.
      uneven: whether the error of prefix sums goes up and down from one round to the next.
      distributed: whether each client adds a share of the noise, in integers; else the server adds Gaussian noise.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    help: ClassVar[str]
    settings: ClassVar[type] = NoSettings
    options: ClassVar[type] = NoSettings
    own_plan: ClassVar[type | None] = None
    independent_rounds: ClassVar[bool] = False
    most_rounds: ClassVar[int | None] = None
    uneven: ClassVar[bool] = False
    distributed: ClassVar[bool] = False

    def options_of(self, settings: Any) -> Any:
        """Take the `options` from the settings of a run."""
        return self.options(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(self.options)})

    def sized(self, options: Any, planned: Any) -> Any:
        """Tell options the numbers of a run's `PlannedRounds`, where they ask for them."""
        return options

    def restarts_optimizer(self, settings: Any) -> bool:
        """Say whether the server optimizer forgets its state wherever noise begins anew."""
        return False

    def plan_fields(self, options: Any) -> dict[str, Any]:
        """Turn options into fields of the plan that need no computing."""
        return {}

    def coefficients(self, options: Any, rounds: int, participation: Participation) -> tuple[float, ...]:
        """Choose the plan's coefficients, which may take long; a ConfigurationError where options do not fit."""
        return ()

    def check_rounds(self, rounds: int) -> None:
        """Refuse, by a ConfigurationError, numbers of rounds that there is no plan for."""
        if rounds < 1:
            raise ConfigurationError(f"{setting('rounds')} is {rounds}, but must be at least 1")
        if self.most_rounds is not None and rounds > self.most_rounds:
            raise ConfigurationError(
                f"{setting('rounds')} is {rounds}, but the mechanism {self.name} takes at most {self.most_rounds}"
            )

    def check_plan(self, plan: NoisePlan) -> None:
        """Refuse, by a ConfigurationError, a plan that this mechanism cannot carry out."""
        if plan.own is not None and not (self.own_plan and isinstance(plan.own, self.own_plan)):
            fits = "None" if self.own_plan is None else f"{self.own_plan.__name__} or None"
            raise ConfigurationError(
                f"{setting('own')} is {plan.own!r}, but must be {fits} with the mechanism {self.name}"
            )
        self.check_coefficients(plan)

    def check_coefficients(self, plan: NoisePlan) -> None:
        """Refuse, by a ConfigurationError, coefficients that are none of this mechanism's."""
        if plan.coefficients:
            raise ConfigurationError(f"the mechanism {self.name} with {len(plan.coefficients)} coefficients")

    def begins_anew_every(self, plan: NoisePlan) -> int | None:
        """After how many rounds each all noise begins anew, of noise that is correlated between rounds; None where it
        does not."""
        return None

    def work(self, plan: NoisePlan) -> float:
        """Bound what the sensitivity of a plan costs, memory among it."""
        return 1e3 * float(plan.rounds) * (len(plan.coefficients) if plan.coefficients else 1)

    def clip_norm_moves_every(self, plan: NoisePlan) -> int | None:
        """After how many rounds each the clip norm may move: where noise begins anew. None where it must stay."""
        return None

    def reach(self, plan: NoisePlan) -> int | None:
        """Over how many rounds, its own the first, one round's sum is spread before independent noise is added to it;
        None for all that follow."""
        return 1 if self.independent_rounds else None

    def lattice(self, plan: NoisePlan, clip_norm: float) -> Lattice:
        """Say what clients do with their updates where noise is distributed."""
        raise NotImplementedError(f"the server adds the noise of {self.name}")

    def releases(self, plan: NoisePlan, generations: Generations) -> RenyiEvent:
        """Describe all that is released where noise is distributed, and so is not Gaussian."""
        raise NotImplementedError(f"the noise of {self.name} is Gaussian")

    @abstractmethod
    def noise(self, plan: NoisePlan, first: int, end: int) -> RoundNoise:
        """Make the noise of a generation: of the rounds from `first` to before `end`."""

    @abstractmethod
    def sensitivity_squared(self, plan: NoisePlan, generations: Generations) -> float:
        """Bound the squared L2 sensitivity of all releases to one client, for updates of norm 1.

        Raises:
          ConfigurationError: participation is not bounded.
        """

    @abstractmethod
    def prefix_variance(self, plan: NoisePlan) -> np.ndarray:
        """Compute the variance of the noise in the sum of the first t rounds, for every t.

        In units of the variance of one draw of noise, float64 [rounds].
        """


def last_round(generations: Generations) -> int:
    """The end of the latest generation, at least 1."""
    return max((end for _, end in generations), default=1)
