"""Which clients take part in a round. A cohort is a pure function of (seed, round), so resuming is free."""

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.randomness import host_rng
from fedlm.models.arguments import check_fields, checked_arguments


class CohortSampler(Protocol):
    """Anything that names the clients of a round.

    Example:
      >>> class Neighbours:
      ...     def sample(self, round_number):
      ...         return np.arange(round_number, round_number + 3)
      >>> sampler: CohortSampler = Neighbours()
      >>> sampler.sample(4)
      array([4, 5, 6])
    """

    def sample(self, round_number: int) -> np.ndarray:
        """Name the cohort of a round, counted from 0: int64 [cohort], distinct client indices, always the same."""


class WhoeverChecksIn:
    """Names nobody: the server of a deployment selects among the clients that check in."""

    def sample(self, round_number: int) -> np.ndarray:
        return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class SeededSampler:
    """What samplers of equal clients depend on.

    Attributes:
      num_clients: how many clients there are.
      cohort_size: how many take part in a round; see each sampler for whether exactly, on average or at most.
      seed: the experiment's root seed, or a secret; see `host_rng`.
    """

    num_clients: int
    cohort_size: int
    seed: int | bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        check_cohort_size(self.cohort_size, self.num_clients)


@dataclass(frozen=True)
class UniformSampler(SeededSampler):
    """A fixed number of clients, uniformly without replacement within a round, independent across rounds.

    Example:
      >>> cohort = UniformSampler(num_clients=100, cohort_size=5, seed=0).sample(round_number=3)
      >>> len(set(cohort.tolist()))
      5
    """

    @checked_arguments
    def sample(self, round_number: int) -> np.ndarray:
        rng = host_rng(self.seed, "cohort", round_number)
        return rng.choice(self.num_clients, self.cohort_size, replace=False)


@dataclass(frozen=True, eq=False)
class WeightedSampler:
    """A fixed number of clients without replacement within a round, heavier ones more often.

    Clients are drawn one after another, each with probability proportional to its weight among those that are left.
    A client's probability of being in the cohort is therefore proportional to its weight for a cohort of one only;
    it levels out as the cohort grows, and is 1 for everyone once all take part.

    Attributes:
      log_weights: float64 [clients], the logarithms of the weights; minus infinity for a client that never takes part.
      cohort_size: how many take part in a round.
      seed: the experiment's root seed.
    """

    log_weights: np.ndarray
    cohort_size: int
    seed: int

    def __post_init__(self) -> None:
        eligible = int(np.sum(self.log_weights > -np.inf))
        if not 1 <= self.cohort_size <= eligible:
            raise ConfigurationError(
                f"{setting('cohort_size')} is {self.cohort_size}, but must lie between 1 and the number of training "
                f"clients whose weight is above 0, {eligible}"
            )

    def sample(self, round_number: int) -> np.ndarray:
        rng = host_rng(self.seed, "cohort", round_number)
        # Clocks that ring at rates proportional to the weights ring in the order of successive draws (Efraimidis and
        # Spirakis 2006). Their logarithms are negated Gumbel variables, which no weight can overflow.
        with np.errstate(divide="ignore"):
            ringing = np.log(rng.standard_exponential(len(self.log_weights))) - self.log_weights
        first = np.argpartition(ringing, self.cohort_size - 1)[: self.cohort_size]
        return first[np.argsort(ringing[first])]


@dataclass(frozen=True, eq=False)
class Availability:
    """When clients can be reached, within a cycle that repeats for ever.

    Attributes:
      num_clients: how many clients there are.
      cycle_hours: length of the cycle.
      client: int [intervals], the client that an interval is of.
      start: float64 [intervals], hours from the beginning of the cycle; the client is available from here on.
      end: float64 [intervals], hours, above `start`; the client is available until just before.
    """

    num_clients: int
    cycle_hours: float
    client: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def clients_at(self, hour: float) -> np.ndarray:
        """Name the clients that are available at an hour of the cycle: int64 [available], ascending and distinct."""
        available = np.zeros(self.num_clients, bool)
        available[self.client[(self.start <= hour) & (hour < self.end)]] = True
        return np.flatnonzero(available)

    def count_intervals_at(self, hours: np.ndarray) -> np.ndarray:
        """Count the intervals that hold hours of the cycle, float64 [times]: 0 exactly where no client is available."""
        begun = np.searchsorted(np.sort(self.start), hours, side="right")
        return begun - np.searchsorted(np.sort(self.end), hours, side="right")


@dataclass(frozen=True, eq=False)
class AvailabilitySampler:
    """Clients that are available when the round begins, uniformly without replacement within a round.

    Where fewer are available than a cohort has, all of them take part.

    Attributes:
      availability: of the clients.
      round_minutes: round r begins at r times this, counted from the beginning of a cycle.
      cohort_size: how many take part in a round at most.
      seed: the experiment's root seed.
    """

    availability: Availability
    round_minutes: float
    cohort_size: int
    seed: int

    def __post_init__(self) -> None:
        check_cohort_size(self.cohort_size, self.availability.num_clients)

    def hour_of(self, round_number: npt.ArrayLike) -> np.ndarray:
        """Say when in the cycle rounds begin, for int [rounds] or one int: hours from its beginning."""
        return np.asarray(round_number) * self.round_minutes / 60 % self.availability.cycle_hours

    def check_rounds(self, rounds: int) -> None:
        """Refuse a run in which nobody is available in a round of it, or of the first cycle.

        Raises:
          ConfigurationError: nobody is in one.
        """
        per_cycle = math.ceil(self.availability.cycle_hours * 60 / self.round_minutes)
        counts = self.availability.count_intervals_at(self.hour_of(np.arange(max(rounds, per_cycle))))
        if not counts.all():
            raise self._nobody(int(np.argmin(counts)))

    def sample(self, round_number: int) -> np.ndarray:
        available = self.availability.clients_at(float(self.hour_of(round_number)))
        if not len(available):
            raise self._nobody(round_number)
        rng = host_rng(self.seed, "cohort", round_number)
        return rng.choice(available, min(self.cohort_size, len(available)), replace=False)

    def _nobody(self, round_number: int) -> ConfigurationError:
        return ConfigurationError(
            f"no client is available in round {round_number}, which begins at hour {self.hour_of(round_number):.4g} of "
            f"a cycle of {self.availability.cycle_hours:g} hours; add clients to the trace, or change "
            f"{setting('round_minutes')} ({self.round_minutes:g}) or {setting('availability_cycle_hours')}"
        )


def check_cohort_size(cohort_size: int, num_clients: int) -> None:
    """Refuse, as a ConfigurationError, cohorts that are empty, or larger than there are clients."""
    if not 1 <= cohort_size <= num_clients:
        raise ConfigurationError(
            f"{setting('cohort_size')} is {cohort_size}, but must lie between 1 and the number of training clients, "
            f"{num_clients}"
        )
