"""What a federated training is planned for: people, client trainings, and how cohorts are drawn."""

from dataclasses import dataclass
from typing import Literal

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import AtLeastOne, Count


@dataclass(frozen=True, kw_only=True)
class FederatedSettings:
    """What a federated training may use, with --federated."""

    people: AtLeastOne | None = None
    """Training clients to draw from, each of which is hidden. One person is one client."""
    client_trainings: AtLeastOne | None = None
    """Compute: the most client trainings in all, cohort size times rounds."""
    rounds_at_most: Count | None = None
    """Most rounds that there is time for."""
    cohort_at_most: Count | None = None
    """Most clients that a round can have."""
    cohort_sampler: Literal["poisson", "min_separation", "shuffled_epochs"] | None = None
    """How cohorts are drawn, as in `fedlm simulate`. If not given, poisson with gaussian noise, and min_separation with
    correlated noise."""
    min_separation: Count | None = None
    """For the min_separation sampler: least difference between the numbers of two rounds of a client. If not given, as
    many as there are people for, people over cohort size."""
    max_participations: Count | None = None
    """For the min_separation sampler: most rounds in which a client takes part."""

    def __post_init__(self) -> None:
        check_value_types(self)
