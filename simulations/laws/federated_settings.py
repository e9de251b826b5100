"""What a federated training is planned for: people, client trainings, and how cohorts are drawn."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from fedlm.fl_core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class FederatedSettings:
    """What a federated training may use, with --federated."""

    people: float | None = None
    """Training clients to draw from, each of which is hidden; one person is one client."""
    client_trainings: float | None = None
    """Compute: how often clients train in all, cohort size times rounds, at most."""
    rounds_at_most: int | None = None
    """Rounds that there is time for."""
    cohort_at_most: int | None = None
    """Clients of a round that can be had."""
    cohort_sampler: Literal["poisson", "min_separation", "shuffled_epochs"] | None = None
    """How cohorts are drawn, as of `fedlm simulate`: poisson with gaussian noise and min_separation with correlated
    noise where it is not given."""
    min_separation: int | None = None
    """Of the min_separation sampler: rounds from one that a client takes part in to the next that it may, at least; as
    many as there are people for, people over cohort size, where it is not given."""
    max_participations: int | None = None
    """Of the min_separation sampler: rounds that a client may take part in at most."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not 1 <= value < math.inf:
                raise ConfigurationError(f"{field.name} is {value}, but must be at least 1, and finite")
