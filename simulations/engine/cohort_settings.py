"""The settings of cohorts: how a simulated round's clients are drawn."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count

CohortSamplerName = Literal["uniform", "poisson", "min_separation", "shuffled_epochs"]


@dataclass(frozen=True, kw_only=True)
class CohortSettings:
    """Who takes part in a round."""

    cohort_size: Count = 50
    """Clients that take part in a round, drawn without replacement."""
    cohort_sampler: CohortSamplerName = "uniform"
    """How a round's clients are drawn. Without privacy: uniform, all with the same probability. With or without
    privacy: poisson, each client independently, cohort-size on average; min_separation, uniformly among clients that
    may take part again; shuffled_epochs, all clients in a random order, then in another."""
    min_separation: Annotated[Count, OnlyWith("cohort_sampler", "min_separation")] = 1
    """For the min_separation sampler: least difference between the numbers of two rounds of a client; 1 allows adjacent
    rounds."""
    max_participations: Annotated[Count | None, OnlyWith("cohort_sampler", "min_separation")] = None
    """For the min_separation sampler: most rounds in which a client takes part."""

    def __post_init__(self) -> None:
        check_value_types(self)
        chosen = self.cohort_sampler
        if chosen not in get_args(CohortSamplerName):
            raise ConfigurationError(
                f"{setting('cohort_sampler')} is {chosen!r}, but must be one of {get_args(CohortSamplerName)}"
            )
