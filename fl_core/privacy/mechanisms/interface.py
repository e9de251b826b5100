"""The registry of noise mechanisms, and what each must do."""

from collections.abc import Callable
from typing import Any, Protocol

from fedlm.fl_core.privacy.mechanisms.gaussian import Gaussian
from fedlm.fl_core.privacy.mechanisms.toeplitz import Toeplitz
from fedlm.fl_core.privacy.mechanisms.tree import Tree
from fedlm.fl_core.privacy.noise_source import Draw
from fedlm.fl_core.privacy.plan import MechanismName, PrivacyPlan
from fedlm.models.base import Params


class NoiseMechanism(Protocol):
    """Noise for the sums of rounds, in units of one draw's standard deviation.

    Round by round, `next` gives what to add to that round's sum. Noise of different rounds may be correlated: added up
    over rounds it is meant to be small. A mechanism covers the rounds from `first` to before `end`; asked for more it
    refuses.
    """

    def init(self, like: Params) -> Any:
        """Make the state before the first round.

        Args:
          like: arrays, or shapes, of the sums' structure.

        Returns:
          A pytree.
        """
        ...

    def next(self, state: Any, draw: Draw) -> tuple[Params, Any]:
        """Make the noise of the next round.

        Args:
          state: before the round.
          draw: the noise of this generation's secret; `next` gives no name the same meaning twice.

        Returns:
          The noise, and the state after the round.

        Raises:
          HorizonError: the last planned round is over.
        """
        ...

    def durable(self, state: Any) -> Any:
        """Say what of a state has to be kept on disk.

        Args:
          state: any.

        Returns:
          A pytree of arrays, from which `restore` makes the state again.
        """
        ...

    def restore(self, durable: Any, like: Params, draw: Draw) -> Any:
        """Undo `durable`.

        Args:
          durable: what it gave.
          like: see `init`.
          draw: see `next`.

        Returns:
          The state.
        """
        ...


MECHANISMS: dict[MechanismName, Callable[[PrivacyPlan, int, int], NoiseMechanism]] = {
    "gaussian": Gaussian,
    "tree": Tree,
    "tree_honaker": Tree,
    "blt": Toeplitz,
    "banded": Toeplitz,
}
"""From a plan, the first round and the round before which to end, to the mechanism of these rounds."""


def make_mechanism(plan: PrivacyPlan, first: int = 0, end: int | None = None) -> NoiseMechanism:
    """Make the mechanism of a generation of noise.

    Args:
      plan: the run's.
      first: the generation's first round.
      end: one more than the last round it may go to; the plan's end where None.

    Returns:
      The mechanism.
    """
    return MECHANISMS[plan.mechanism](plan, first, plan.rounds if end is None else end)
