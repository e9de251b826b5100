"""The noise mechanisms by name, which is that of their file: a new one is a file and a line."""

from importlib import import_module

from fedlm.fl_core.privacy.mechanisms.interface import Mechanism, NoisePlan, RoundNoise

_FILES = (
    "gaussian",
    "tree",
    "tree_honaker",
    "blt",
    "banded",
    "bisr",
    "dense",
    "skellam",
    "discrete_gaussian",
)

MECHANISMS: dict[str, Mechanism] = {file: import_module(f"{__package__}.{file}").MECHANISM for file in _FILES}
"""How noise is correlated between rounds, by name.

Example:
  >>> "gaussian" in MECHANISMS and "tree" in MECHANISMS
  True
"""


def make_noise(plan: NoisePlan, first: int = 0, end: int | None = None) -> RoundNoise:
    """Make the noise of the rounds from `first` to before `end`, the plan's last round where None."""
    return MECHANISMS[plan.mechanism].noise(plan, first, plan.rounds if end is None else end)
