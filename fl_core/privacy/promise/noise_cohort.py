"""Noise of a cohort larger than the one that is simulated: what a planned deployment would train, and NOT PRIVATE.

A round's mean gets the noise that it would have if `planned` clients took part, of that many times more people. So
utility at a large cohort can be simulated with a small one (as pfl-research's `noise_cohort_size` does). The sum of the
clients who do take part gets `simulated / planned` of that noise, so that far less is hidden of these.
"""

from dataclasses import dataclass

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.models.arguments import check_fields


@dataclass(frozen=True)
class NoiseCohort:
    """For how many clients the noise of a run is, and how many it has.

    Attributes:
      simulated: clients of a round that there are.
      planned: clients of a round that the noise is for, more than these.
      noise_multiplier: of the deployment that is planned.
    """

    simulated: int
    planned: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.simulated < self.planned:
            raise ConfigurationError(
                f"{setting('noise_cohort_size')} is {self.planned}, but must be above {setting('cohort_size')}, "
                f"{self.simulated}: it is how many clients a planned deployment has in a round; without one, leave it "
                "out"
            )

    @property
    def scale(self) -> float:
        """What the noise of the planned deployment's sum is multiplied by."""
        return self.simulated / self.planned

    @property
    def scaled_multiplier(self) -> float:
        """The noise multiplier of the sum of the clients that there are."""
        return self.noise_multiplier * self.scale

    @property
    def reason(self) -> str:
        """Why nothing is promised."""
        return (
            f"the noise is as if of {self.planned:,} clients a round, for planning, and only {self.simulated:,} are "
            "simulated"
        )

    @property
    def would_be(self) -> str:
        """Which deployment a guarantee of the planned noise is about."""
        return (
            f"A deployment with {self.planned:,} clients in each round, of {self.planned / self.simulated:.6g} times "
            "as many people, would have"
        )
