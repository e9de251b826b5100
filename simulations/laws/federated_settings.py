"""What a federated training is planned for: people, client trainings, and how cohorts are drawn."""

from dataclasses import dataclass
from typing import Literal

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import AtLeastOne, Count


@dataclass(frozen=True, kw_only=True)
class FederatedSettings:
    """What a federated training may use, with --federated."""

    people: AtLeastOne | None = None
    """Training clients to draw from, each of which is hidden; one person is one client."""
    client_trainings: AtLeastOne | None = None
    """Compute: how often clients train in all, cohort size times rounds, at most."""
    rounds_at_most: Count | None = None
    """Rounds that there is time for."""
    cohort_at_most: Count | None = None
    """Clients of a round that can be had."""
    cohort_sampler: Literal["poisson", "min_separation", "shuffled_epochs"] | None = None
    """How cohorts are drawn, as of `fedlm simulate`: poisson with gaussian noise and min_separation with correlated
    noise where it is not given."""
    min_separation: Count | None = None
    """Of the min_separation sampler: rounds from one that a client takes part in to the next that it may, at least; as
    many as there are people for, people over cohort size, where it is not given."""
    max_participations: Count | None = None
    """Of the min_separation sampler: rounds that a client may take part in at most."""

    def __post_init__(self) -> None:
        check_value_types(self)
