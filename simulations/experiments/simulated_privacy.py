"""The settings of privacy that only a simulation has."""

from dataclasses import dataclass

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count
from fedlm.fl_core.privacy.promise.noise_cohort import NoiseCohort
from fedlm.fl_core.privacy.settings import PrivacySettings


@dataclass(frozen=True, kw_only=True)
class SimulatedPrivacySettings(PrivacySettings):
    """Differential privacy of each client, and how it is paid for."""

    noise_cohort_size: Count | None = None
    """Simulate a planned deployment with this many clients in a round, above cohort-size, of as many times more people.
    The noise on a round's mean is what that deployment would add. Clients who are simulated get less protection than
    it would give, so the run is NOT PRIVATE, and says so. Use it to plan."""

    def check_noise_cohort(self, cohort_size: int, *, audited: bool) -> None:
        """Refuse a noise cohort that is none, or that an audit cannot be of.

        Raises:
          ConfigurationError: it is.
        """
        if self.noise_cohort_size is None:
            return
        NoiseCohort(cohort_size, self.noise_cohort_size, noise_multiplier=1.0)
        if audited:
            raise ConfigurationError(
                f"{setting('audit_canaries')}: with a {setting('noise_cohort_size')} an audit would measure neither "
                "the planned deployment nor a promise; leave one of them out"
            )
