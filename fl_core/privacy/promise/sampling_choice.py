"""Whether sampling users, or their examples one by one, needs less noise for the same signal (Charles et al. 2024,
"Fine-tuning large language models with user-level differential privacy", section 5).

Both read as many examples in a step, B on average, K of each user. Let r be the norm of the mean gradient of a user's K
examples over that of one example: 1 where all are alike, `1 / sqrt(K)` where none has to do with another. Clipping at
these norms changes nothing, so the mean gradient is the same. The noise on it has standard deviation `sigma_e / B`
where examples are sampled and `sigma_u r K / B` where users are. So users need less noise where r is below
`sigma_e / (K sigma_u)`.
"""

import functools
import math
from typing import NamedTuple

import scipy

from fedlm.fl_core.privacy.accounting.sampled_examples import MOST_SHIFT
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.fl_core.privacy.participation.sampling import ExamplesParticipation, PoissonParticipation
from fedlm.fl_core.privacy.promise.guarantee import calibrate, epsilon_of
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan

_MOST_NOISE = 1e4
_FACTOR = 2.0  # of the noise, in the search for where the choice changes


class SamplingChoice(NamedTuple):
    """Two ways to sample, at equal epsilon, delta, steps and examples of a step.

    Attributes:
      of_examples: noise multiplier where examples are sampled, in clip norms of an example.
      of_users: where users are, in clip norms of a user's mean gradient.
      turning_point: r, below which sampling users needs less noise.
      least: of r: that of unrelated gradients. The most is 1.
      crossover: epsilon, below which sampling users needs less noise where a user's gradients are unrelated; None where
        one way does at any epsilon.
    """

    of_examples: float
    of_users: float
    turning_point: float
    least: float
    crossover: float | None

    @property
    def in_words(self) -> str:
        """Say which way needs less noise."""
        if self.least == 1:
            return "either: the two are the same where a user has one example"
        if self.turning_point <= self.least:
            return "examples: sampling examples needs less noise, or no more, however alike a user's gradients are"
        return (
            f"users, where a user's mean gradient is shorter than {self.turning_point:.4g} of one example's gradient; "
            f"else examples (the norm is {self.least:.4g} where a user's gradients are unrelated, 1 where they are "
            "equal)"
        )


def choose_sampling(plan: PrivacyPlan, epsilon: float, delta: float) -> SamplingChoice:
    """Compare a plan of sampled examples, which has this epsilon at delta, with sampled users.

    Raises:
      ConfigurationError: no noise has this epsilon.
    """
    by_examples = plan.participation
    assert isinstance(by_examples, ExamplesParticipation)
    examples, alone = by_examples.examples, PoissonParticipation(by_examples.sampling_probability)
    of_users = calibrate(functools.partial(_with_noise, plan, alone), delta, epsilon).noise_multiplier
    least = examples**-0.5
    turning_point = plan.noise_multiplier / (examples * of_users)

    def surplus(log_noise: float) -> float:
        """Epsilon of users over that of examples, with noise that is as much for unrelated gradients: a logarithm."""
        noise = math.exp(log_noise)
        by_users = epsilon_of(_with_noise(plan, alone, noise * least), delta)
        return math.log(max(by_users, 1e-9) / max(epsilon_of(_with_noise(plan, by_examples, noise), delta), 1e-9))

    low = high = math.log(plan.noise_multiplier)
    most, fewest = math.log(_MOST_NOISE), math.log(examples / MOST_SHIFT)
    # The more noise, the better for users.
    while low > fewest and surplus(low) < 0:
        low -= math.log(_FACTOR)
    while high < most and surplus(high) > 0:
        high += math.log(_FACTOR)
    crossover = None
    if examples > 1 and surplus(low) >= 0 >= surplus(high):
        noise = math.exp(scipy.optimize.brentq(surplus, low, high, xtol=1e-4)) if low < high else math.exp(low)
        crossover = epsilon_of(_with_noise(plan, by_examples, noise), delta)
    return SamplingChoice(plan.noise_multiplier, of_users, turning_point, least, crossover)


def _with_noise(plan: PrivacyPlan, participation: Participation, noise: float) -> PrivacyPlan:
    return PrivacyPlan(plan.mechanism, plan.rounds, noise, participation, unit=plan.unit, adjacency=plan.adjacency)
