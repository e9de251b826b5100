"""Which clients take part in a round. A cohort is a pure function of (seed, round), so resuming is free."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fl_core.errors import ConfigurationError
from fl_core.randomness import host_rng


class CohortSampler(Protocol):
    """Anything that names the clients of a round."""

    def sample(self, round_number: int) -> np.ndarray:
        """Name the cohort of a round.

        Args:
          round_number: counted from 0.

        Returns:
          int64 [cohort]: distinct client indices, the same at every call.
        """
        ...


@dataclass(frozen=True)
class UniformSampler:
    """A fixed number of clients, uniformly without replacement within a round, independent across rounds.

    Attributes:
      num_clients: how many clients there are.
      cohort_size: how many take part in a round.
      seed: the experiment's root seed.
    """

    num_clients: int
    cohort_size: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.cohort_size <= self.num_clients:
            raise ConfigurationError(
                f"cohort_size is {self.cohort_size}, but must lie between 1 and the number of training clients, "
                f"{self.num_clients}"
            )

    def sample(self, round_number: int) -> np.ndarray:
        """Name the cohort of a round; see `CohortSampler.sample`."""
        rng = host_rng(self.seed, "cohort", round_number)
        return rng.choice(self.num_clients, self.cohort_size, replace=False)
