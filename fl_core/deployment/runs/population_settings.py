"""What a server promises of all its runs together, as the command line gives it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, Positive
from fedlm.fl_core.privacy.accounting.delta import Delta

POPULATION_DEFAULTS: dict[str, Any] = {
    "population": "default",
    "rounds": 10_000,
    "max_participations": None,
    "min_separation": 1,
}


@dataclass(frozen=True, kw_only=True)
class PopulationSettings:
    """What a server promises of all runs of a population together. It is fixed when the server starts with the
    population for the first time."""

    epsilon: Positive | None = None
    """Epsilon that all runs may spend together. A server with it takes private runs alone, and each reserves all that
    it plans to spend when it is submitted. A server without it takes runs that are NOT PRIVATE."""
    delta: Delta | None = None
    """Delta at which that epsilon is stated."""
    population: tuple[str, ...] = ()
    """Names of the people whose devices take part: each of these populations is promised all this for itself. Start the
    server with another name to add one. If not given, `default`."""
    rounds: Count | None = None
    """Most rounds of all runs together. If not given, 10,000."""
    max_participations: Count | None = None
    """Most rounds in which a client takes part, of all runs together. If not given, as many as min-separation lets."""
    min_separation: Count | None = None
    """Least difference between the numbers of two rounds of a client. All runs number their rounds one after another.
    If not given, 1."""

    def __post_init__(self) -> None:
        given = [name for name, value in dataclasses.asdict(self).items() if value not in (None, ())]
        if given and (self.epsilon is None) != (self.delta is None):
            raise ConfigurationError(
                f"a budget of privacy needs both {setting('epsilon')} and {setting('delta')}; give both, or none"
            )

    @property
    def promised(self) -> dict[str, Any]:
        """What was given, but for names and the budget."""
        names = [name for name in POPULATION_DEFAULTS if name != "population"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}
