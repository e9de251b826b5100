"""What a run is compared with, as its ledger says, and how the best of several is chosen at a stated price."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import NotNegative, Positive
from fedlm.fl_core.privacy.origins.ancestry import TUNING_FIELD
from fedlm.fl_core.runs.capabilities.interface import Capability
from fedlm.simulations.experiments.simulated_privacy import SimulatedPrivacySettings

if TYPE_CHECKING:
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw


class ComparedWith(Capability):
    """A run is one of several, of which one may be chosen."""

    def __init__(self, tuning: Mapping[str, Any]):
        """Take what the ledger is to say."""
        self._tuning = dict(tuning)

    def law(self) -> "TrialsLaw | None":
        from fedlm.fl_core.privacy.promise.selection.tuning_record import law_of

        return law_of(self._tuning)

    def about(self) -> dict[str, Any]:
        return {TUNING_FIELD: self._tuning}


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """Private selection: the best of a random number of runs, at a stated price."""

    private_selection: Literal["none", "poisson", "truncated_negative_binomial"] = "none"
    """Keep only the best of a secret random number of runs, with a statement that includes what the choice costs
    (Papernot and Steinke 2022). Each run is a random one of the combinations of models and learning rates, with a seed
    and noise of its own. The best one has the lowest held-out loss. The distribution of the number:
    truncated_negative_binomial costs least, and gives at least one run; poisson varies less, and may give none. A
    target-epsilon includes the choice. none: train every combination with every seed; choosing among them is not
    accounted."""
    expected_trials: Annotated[Positive, OnlyWith("private_selection", "poisson", "truncated_negative_binomial")] = 10.0
    """How many runs a private selection trains on average."""
    selection_eta: Annotated[NotNegative, OnlyWith("private_selection", "truncated_negative_binomial")] = 1.0
    """Shape of the truncated negative binomial distribution: 1 is the geometric one; smaller costs less and varies
    more, down to 0, the logarithmic one."""

    def __post_init__(self) -> None:
        check_value_types(self)
        self.law()

    def law(self) -> "TrialsLaw | None":
        """Make the distribution of the number of runs; None where there is no private selection.

        Raises:
          ConfigurationError: a number is out of range.
        """
        if self.private_selection == "none":
            return None
        # The libraries of privacy take a while to load.
        from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw

        poisson = self.private_selection == "poisson"
        return TrialsLaw(self.private_selection, self.expected_trials, None if poisson else self.selection_eta)

    def check_runs(self, privacy: SimulatedPrivacySettings, given: Mapping[str, Any]) -> None:
        """Refuse runs that no private selection can be of.

        Args:
          privacy: of the runs.
          given: settings that a selection has no use for, and that are not their defaults.

        Raises:
          ConfigurationError: there is a private selection, and the runs do not fit it.
        """
        if self.private_selection == "none":
            return
        for name, value in given.items():
            raise ConfigurationError(
                f"{setting(name)} is {value}, but a private selection has runs of one privacy, each with a seed of its "
                f"own; leave {name} out"
            )
        if not privacy.is_private or privacy.noise_seed != "entropy" or privacy.noise_cohort_size is not None:
            raise ConfigurationError(
                f"{setting('private_selection')} needs runs that are private: give {setting('privacy')}, and no "
                f"{setting('noise_seed')} or {setting('noise_cohort_size')}, or leave it out"
            )
        if privacy.target_rho is not None:
            raise ConfigurationError(
                f"{setting('target_rho')} does not express a private selection; give {setting('target_epsilon')} or "
                f"{setting('noise_multiplier')}"
            )
