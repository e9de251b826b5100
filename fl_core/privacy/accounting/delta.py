"""Which deltas are accepted, everywhere."""

from typing import Annotated

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Range

LEAST_DELTA = 1e-15
"""That anything is stated at: far above how far drawn noise is from Gaussian noise."""
Delta = Annotated[float, Range(least=LEAST_DELTA, below=1)]
"""The type of a setting that is one."""


def default_delta(units: float) -> float:
    """Return the delta at which epsilon is stated where none is given: the number of units to the power -1.1, which is
    below one in as many as there are."""
    return units**-1.1


def planned_delta(delta: float | None, units: float) -> float:
    """Return the delta of a plan for so many units: what was given, or the default.

    Raises:
      ConfigurationError: there are so few or so many units that the default is none that noise is made for.
    """
    if delta is not None:
        return delta
    default = default_delta(units)
    if not LEAST_DELTA <= default < 1:
        raise ConfigurationError(
            f"for {units:g} units delta would be {default:.3g}; give a {setting('delta')} from {LEAST_DELTA:g} to "
            "below 1"
        )
    return default


def check_delta(delta: float, name: str = "delta") -> None:
    """Refuse a delta that noise and accountants are not made for.

    Raises:
      ConfigurationError: it is below 1e-15, or not below 1.
    """
    if not LEAST_DELTA <= delta < 1:
        raise ConfigurationError(f"{setting(name)} is {delta}, but must be at least {LEAST_DELTA:g} and below 1")


def large_delta(delta: float, units: float) -> str | None:
    """Say that a delta is so large that it promises nobody much; None where it is not."""
    if delta * units <= 1:
        return None
    return (
        f"delta is {delta:.4g}, above one in {units:,}: publishing {delta * units:.4g} of them as they are would keep "
        "it too; ask for a smaller delta"
    )
