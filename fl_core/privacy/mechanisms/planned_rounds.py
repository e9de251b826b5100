"""No mechanism gives noise beyond the rounds that were planned and accounted."""

import numpy.typing as npt

from fedlm.fl_core.errors import ConfigurationError


class HorizonError(ConfigurationError):
    """A run was to go on past its planned last round."""


def check_horizon(number: npt.ArrayLike, end: int) -> int:
    """Refuse rounds beyond the plan.

    Args:
      number: of the round that noise is wanted for.
      end: one more than the last planned round.

    Returns:
      The round's number.

    Raises:
      HorizonError: it is not below the end.
    """
    number = int(number)  # type: ignore[arg-type]
    if number >= end:
        raise HorizonError(
            f"round {number} lies beyond the {end} rounds that this run's privacy was planned and accounted for; its "
            "noise ends there. Begin a new run, with a plan of its own, from the last checkpoint"
        )
    return number
