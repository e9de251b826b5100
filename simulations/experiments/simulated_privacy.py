"""The privacy of a simulation: the settings that only it has, and what a run promises by them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.ancestry import on_other_data
from fedlm.fl_core.privacy.promise.noise_cohort import NoiseCohort
from fedlm.fl_core.privacy.settings import PrivacySettings
from fedlm.fl_core.runs.round_rows import Divergence, find_lost_score

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.private_plan import Beside, PlannedRounds
    from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
    from fedlm.fl_core.runs.private_releases import BegunRun


_FEWEST_MASKED, _MOST_MASKED = 3, 64
"""Fewer clients have no secure sum. Each of more checks the signatures of all others, in this one process."""
_WITH_INTEGERS = [name for name, mechanism in MECHANISMS.items() if mechanism.distributed]


@dataclass(frozen=True, kw_only=True)
class SimulatedPrivacySettings(PrivacySettings):
    """Differential privacy of each client, and how it is paid for."""

    noise_cohort_size: Count | None = None
    """Simulate a planned deployment with this many clients in a round, above cohort-size, of as many times more people.
    The noise on a round's mean is what that deployment would add. Clients who are simulated get less protection than
    it would give, so the run is NOT PRIVATE, and says so. Use it to plan."""
    masks: Annotated[bool, OnlyWith("privacy", *_WITH_INTEGERS)] = False
    """With noise of clients: let a round's clients mask their integers too, as in a deployment with aggregation secure.
    This process is client and server. The numbers stay the same, and a round takes longer; for 3 to 64 clients."""

    def check_masks(self, cohort_size: int) -> None:
        """Refuse, by a ConfigurationError, to mask in cohorts that are too small or take too long."""
        least = getattr(self, "least_survivors", None) or cohort_size
        if self.masks and not _FEWEST_MASKED <= least <= cohort_size <= _MOST_MASKED:
            raise ConfigurationError(
                f"{setting('masks')} is on, which needs {_FEWEST_MASKED} to {_MOST_MASKED} clients in a round, but "
                f"{setting('cohort_size')} is {cohort_size}, of whom {least} suffice; give others, or leave "
                f"{setting('masks')} out"
            )

    def check_noise_cohort(self, cohort_size: int) -> None:
        """Refuse a noise cohort that is none. Raises ConfigurationError."""
        if self.noise_cohort_size is not None:
            NoiseCohort(cohort_size, self.noise_cohort_size, noise_multiplier=1.0)


class Privacy(NamedTuple):
    """What a run with noise promises, and how."""

    settings: SimulatedPrivacySettings
    rounds: "PlannedRounds"
    beside: "Beside"
    noise_seed: int | None  # None for noise that nobody can compute again

    def plan(self, begun: "BegunRun | None" = None) -> "PrivateAggregation":
        """Work out what happens to the sums of rounds; `begun` is what the run that goes on has promised."""
        from fedlm.fl_core.privacy.private_plan import plan_aggregation

        beside = self.beside if begun is None else self.beside._replace(origins=begun.origins)
        return plan_aggregation(self.settings, self.rounds, beside, begun and begun.plan)

    def noise_ratio(self, out: Path | None) -> float:
        """Find the noise on a mean, in clip norms, of a run that may have been begun in a folder."""
        # The libraries of privacy take a while to load.
        from fedlm.fl_core.runs.private_releases import begun_in

        aggregation = self.plan(None if out is None else begun_in(out))
        return aggregation.plan.noise_multiplier / aggregation.report_goal

    def find_divergence(self, splits: Mapping[str, Any]) -> Callable[[list[dict[str, Any]]], Divergence | None]:
        """Say what tells that a run diverged: when a private one ends must follow from what was released alone, not
        from what clients sent, nor from scores on held-out examples of those who are trained on, here or before on
        other data, which no noise hides."""
        before = on_other_data(self.beside.origins.ancestry, self.beside.training_data)
        if not before and set(splits["train"].client_ids).isdisjoint(splits["heldout"].client_ids):
            return find_lost_score
        return lambda rows: None
