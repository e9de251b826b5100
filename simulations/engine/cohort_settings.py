"""The settings of cohorts: how a simulated round's clients are drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, Finite, Positive

CohortSamplerName = Literal["uniform", "availability", "weighted", "poisson", "min_separation", "shuffled_epochs"]


@dataclass(frozen=True, kw_only=True)
class CohortSettings:
    """Who takes part in a round."""

    cohort_size: Count = 50
    """Clients that take part in a round, drawn without replacement."""
    cohort_sampler: CohortSamplerName = "uniform"
    """How a round's clients are drawn. Without privacy: uniform, all with the same probability; weighted, one after
    another with probability proportional to weight; availability, uniformly among available clients, or all of these
    if they are fewer than cohort-size. With or without privacy: poisson, each client independently, cohort-size on
    average; min_separation, uniformly among clients that may take part again; shuffled_epochs, all clients in a random
    order, then in another."""
    min_separation: Annotated[Count, OnlyWith("cohort_sampler", "min_separation")] = 1
    """For the min_separation sampler: least difference between the numbers of two rounds of a client; 1 allows adjacent
    rounds."""
    max_participations: Annotated[Count | None, OnlyWith("cohort_sampler", "min_separation")] = None
    """For the min_separation sampler: most rounds in which a client takes part."""
    availability_trace: Annotated[Path | None, OnlyWith("cohort_sampler", "availability")] = None
    """CSV file for the availability sampler, with the header `client_id,start,end`: the hours of a cycle between which
    a client is available. If start is above end, they pass the cycle's end. Clients without a row are never
    available."""
    availability_cycle_hours: Annotated[Positive, OnlyWith("cohort_sampler", "availability")] = 24.0
    """Hours of the trace's cycle, which repeats for ever."""
    round_minutes: Annotated[Positive, OnlyWith("cohort_sampler", "availability")] = 10.0
    """How long a round lasts for the availability sampler: round r begins r times this after the cycle's beginning."""
    cohort_weights: Annotated[Path | None, OnlyWith("cohort_sampler", "weighted")] = None
    """CSV file for the weighted sampler, with the header `client_id,weight`. Clients without a row weigh nothing. If
    not given, a client's weight is its number of examples to the power cohort-weight-exponent."""
    cohort_weight_exponent: Annotated[
        Finite, OnlyWith("cohort_sampler", "weighted"), OnlyWith("cohort_weights", None)
    ] = 1.0
    """For the weighted sampler: a client's weight is its number of examples to this power."""

    def __post_init__(self) -> None:
        check_value_types(self)
        chosen = self.cohort_sampler
        if chosen not in get_args(CohortSamplerName):
            raise ConfigurationError(
                f"{setting('cohort_sampler')} is {chosen!r}, but must be one of {get_args(CohortSamplerName)}"
            )
        if chosen == "availability" and self.availability_trace is None:
            raise ConfigurationError(
                f"{setting('cohort_sampler')} is availability, but there is no {setting('availability_trace')}; give "
                "one"
            )
