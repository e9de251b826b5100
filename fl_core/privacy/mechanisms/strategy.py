"""What mechanisms share whose noise is `C^-1 z`, with C a lower-triangular strategy matrix that the plan's coefficients
describe, and z independent draws.

One client changes `C x` by the sum of the columns of C of its rounds, so that the sensitivity is that of C.
"""

import functools
import math
from abc import abstractmethod

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.interface import Generations, Mechanism, NoisePlan, last_round


class StrategyMechanism(Mechanism):
    """Noise of a strategy matrix; a generation that begins late begins with the first rows again."""

    def check_coefficients(self, plan: NoisePlan) -> None:
        if not plan.coefficients:
            raise ConfigurationError(f"the mechanism {self.name} with 0 coefficients")

    @abstractmethod
    def stretch_squared(self, plan: NoisePlan, rounds: int, most: int, min_separation: int) -> float:
        """Bound the squared sensitivity of the first rounds to one that takes part so often, so far apart, at most."""

    def sensitivity_squared(self, plan: NoisePlan, generations: Generations) -> float:
        # Separations between rounds of different generations are not made use of.
        bound = plan.participation.bounded(last_round(generations))
        lengths = [end - first for first, end in generations]
        if len(lengths) == 1 and lengths[0]:
            return _stretch_squared(self, plan, lengths[0], bound.most(lengths[0]), min_separation=bound.min_separation)
        best = {0: 0.0}
        total = bound.most(sum(lengths)) if bound.max_participations else sum(lengths)
        for length in lengths:
            of_stretch = {
                most: _stretch_squared(self, plan, length, most, min_separation=bound.min_separation)
                for most in range(1, bound.most(length) + 1)
            }
            best = {
                used: max(
                    [best.get(used, -math.inf)]
                    + [best[used - most] + value for most, value in of_stretch.items() if used - most in best]
                )
                for used in range(min(total, max(best) + len(of_stretch)) + 1)
            }
        return max(best.values())


@functools.lru_cache(maxsize=4096)
def _stretch_squared(
    mechanism: StrategyMechanism, plan: NoisePlan, rounds: int, most: int, *, min_separation: int
) -> float:
    return mechanism.stretch_squared(plan, rounds, most, min(min_separation, rounds))
