"""Which clients take part in a round. A cohort is a pure function of (seed, round), so resuming is free."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

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


def check_cohort_size(cohort_size: int, num_clients: int) -> None:
    """Refuse, as a ConfigurationError, cohorts that are empty, or larger than there are clients."""
    if not 1 <= cohort_size <= num_clients:
        raise ConfigurationError(
            f"{setting('cohort_size')} is {cohort_size}, but must lie between 1 and the number of training clients, "
            f"{num_clients}"
        )
