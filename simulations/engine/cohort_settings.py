"""The settings of cohorts: how a simulated round's clients are drawn."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, Finite, Positive

CohortSamplerName = Literal["uniform", "availability", "weighted", "poisson", "min_separation", "shuffled_epochs"]
_OF_SAMPLER = {
    "availability": ("availability_trace", "availability_cycle_hours", "round_minutes"),
    "weighted": ("cohort_weights", "cohort_weight_exponent"),
    "min_separation": ("min_separation", "max_participations"),
}


@dataclass(frozen=True, kw_only=True)
class CohortSettings:
    """Who takes part in a round."""

    cohort_size: Count = 50
    """Clients that take part in a round, drawn without replacement."""
    cohort_sampler: CohortSamplerName = "uniform"
    """How a round's clients are drawn. uniform: all alike. weighted: one after another with probability proportional to
    weight among those that are left. availability: uniformly among those that are available when the round begins, or
    all of them where they are fewer than cohort-size. Those that privacy can be accounted for: poisson: each client
    independently, cohort-size of them on average. min_separation: uniformly among those that may take part again.
    shuffled_epochs: all clients in a random order, then in another."""
    min_separation: Count = 1
    """Of the min_separation sampler: rounds from one that a client takes part in to the next that it may, at least; 1
    allows adjacent rounds."""
    max_participations: Count | None = None
    """Of the min_separation sampler: rounds that a client may take part in at most."""
    availability_trace: Path | None = None
    """CSV file for the availability sampler, with the header `client_id,start,end`: hours within a cycle from and until
    which a client is available, past the cycle's end where start is above end. Clients without a row never are."""
    availability_cycle_hours: Positive = 24.0
    """Length of the cycle that the trace's hours are of; it repeats for ever."""
    round_minutes: Positive = 10.0
    """How long a round lasts for the availability sampler: round r begins r times this after the cycle's beginning."""
    cohort_weights: Path | None = None
    """CSV file for the weighted sampler, with the header `client_id,weight`; clients without a row weigh nothing. Where
    it is not given, a client weighs its number of examples to the power cohort-weight-exponent."""
    cohort_weight_exponent: Finite = 1.0
    """Power of a client's number of examples that is its weight for the weighted sampler."""

    def __post_init__(self) -> None:
        check_value_types(self)
        chosen = self.cohort_sampler
        if chosen not in get_args(CohortSamplerName):
            raise ConfigurationError(
                f"{setting('cohort_sampler')} is {chosen!r}, but must be one of {get_args(CohortSamplerName)}"
            )
        defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(CohortSettings)}
        for sampler, names in _OF_SAMPLER.items():
            for name in names:
                value = getattr(self, name)
                if value != defaults[name] and chosen != sampler:
                    raise ConfigurationError(
                        f"{setting(name)} is {value}, which does nothing with the {setting('cohort_sampler')} "
                        f"{chosen}; give {setting('cohort_sampler')} {sampler}, or leave {name} out"
                    )
        if chosen == "availability" and self.availability_trace is None:
            raise ConfigurationError(
                f"{setting('cohort_sampler')} is availability, but there is no {setting('availability_trace')}; give "
                "one"
            )
        if self.cohort_weights is not None and self.cohort_weight_exponent != 1.0:
            raise ConfigurationError(
                f"{setting('cohort_weight_exponent')} is {self.cohort_weight_exponent}, which does nothing with "
                f"{setting('cohort_weights')}: it is a power of numbers of examples; leave one of the two out"
            )
