"""The federated trainings of a budget, with the noise of their mechanism and sampler and the losses that laws predict.

As in laws of federated runs, a step is a round, its batch a cohort, and the noise-batch ratio the noise multiplier over
the cohort size. Compute is counted in client trainings, whatever the size of the model.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, Participation
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler, PoissonSampler, ShuffledEpochSampler
from fedlm.fl_core.privacy.promise.guarantee import sensitivity_squared
from fedlm.fl_core.privacy.promise.noise_table import LEAST_EPSILON, make_noise_table
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise
from fedlm.fl_core.privacy.settings import PrivacySettings
from fedlm.simulations.engine.cohort_settings import CohortSamplerName, CohortSettings
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.measuring.imported_runs import OF_MECHANISMS
from fedlm.simulations.laws.planning.configurations import Configurations, Doubled, doubled, sizes_between
from fedlm.simulations.laws.planning.federated_settings import FederatedSettings
from fedlm.simulations.laws.surface.loss_surface import LossSurface

_COHORTS = {"gaussian": 101, "tree": 51, "tree_honaker": 51}
_COHORTS_OF_OTHERS = 7  # their coefficients take seconds to be chosen for each number of rounds

_table = functools.lru_cache(maxsize=4)(make_noise_table)


class FederatedBudget(NamedTuple):
    """What a training may use.

    Attributes:
      people: training clients to draw from.
      epsilon: that may be spent; infinite for a training without privacy.
      delta: at which.
      client_trainings: cohort size times rounds, at most.
    """

    people: float
    epsilon: float
    delta: float
    client_trainings: float


@dataclass(frozen=True, eq=False)
class FederatedPlanner:
    """What plans have in common.

    Attributes:
      surface: the measured loss.
      mechanism: of the noise.
      options: of the mechanism, as in the runs that were measured.
      sampler: how cohorts are drawn.
      settings: limits of rounds, cohorts and participation.
    """

    surface: LossSurface
    mechanism: str
    options: Any
    sampler: str
    settings: FederatedSettings

    def configurations(self, budget: FederatedBudget) -> Configurations:
        """List trainings that spend the budget, or as much of it as the limits allow, and predict their losses. Without
        privacy cohorts are of the measured size, for what larger ones gain was not measured."""
        private = math.isfinite(budget.epsilon)
        cohorts, rounds = self._cohorts(budget, private)
        ratios = self._noise(budget, cohorts, rounds) / cohorts if private else np.zeros(len(cohorts))
        known = np.isfinite(ratios)
        sizes = sizes_between(self.surface)
        if private:
            ratios = self.surface.with_measured_noise(ratios)
        parameters = np.repeat(sizes, known.sum())
        cohort, time, ratio = (np.tile(one[known], len(sizes)) for one in (cohorts, rounds, ratios))
        return Configurations(parameters, cohort, time, ratio, self.surface.predict(parameters, time, ratio))

    def doubled(self, budget: FederatedBudget) -> dict[str, Doubled]:
        """Predict what doubling each part of the budget would give, by name; empty for mechanisms of which that takes
        long."""
        return doubled(self.configurations, budget, self.surface) if self.mechanism in _COHORTS else {}

    def participation(self, people: int, cohort_size: int, rounds: int) -> Participation:
        """Say what the sampler enforces. Raises ConfigurationError where there are too few people for that."""
        if self.sampler == "poisson":
            return PoissonSampler(people, cohort_size, 0).participation
        if self.sampler == "shuffled_epochs":
            return ShuffledEpochSampler(people, cohort_size, 0).participation
        apart = self.settings.min_separation or min(people // cohort_size, rounds)
        bound = BoundedParticipation(self.settings.max_participations, apart)
        MinSeparationSampler(people, cohort_size, 0, bound).check_rounds(rounds)
        return bound

    def with_noise(self, rounds: int, participation: Participation) -> Callable[[float], PrivacyPlan]:
        """Plan all but the amount of noise, which takes seconds with mechanisms that choose coefficients."""
        return plan_noise(self.mechanism, rounds, participation, options=self.options)

    def _cohorts(self, budget: FederatedBudget, private: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """List whole cohort sizes, and as many rounds of each as there may be."""
        limits, steps = self.settings, self.surface.steps
        trainings = min(budget.client_trainings, budget.people * (limits.max_participations or math.inf))
        longest = min(math.floor(steps[-1]), limits.rounds_at_most or math.inf)
        people = budget.people // (limits.min_separation or 1)
        most = math.floor(min(people, trainings / steps[0], limits.cohort_at_most or math.inf))
        if most < 1:
            return np.zeros(0), np.zeros(0)
        # Smaller cohorts would leave some of the budget, and have more noise in as many rounds.
        least = min(max(trainings // longest, 1), most)
        number = _COHORTS.get(self.mechanism, _COHORTS_OF_OTHERS)
        cohorts = np.unique(np.round(np.geomspace(least, most, number)))
        if not private:
            cohorts = np.array([float(self.surface.batch_size)] * (self.surface.batch_size <= most))
        rounds = np.minimum(np.floor(trainings / cohorts), longest)
        return cohorts[rounds >= steps[0]], rounds[rounds >= steps[0]]

    def _noise(
        self, budget: FederatedBudget, cohorts: NDArray[np.float64], rounds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Find noise multipliers; NaN where cohorts cannot be drawn so. Poisson cohorts' are read off a table."""
        if not len(cohorts):
            return np.zeros(0)
        if self.sampler == "poisson":
            steps = float(self.surface.steps[0]), float(self.surface.steps[-1])
            passes = max(1.0, float((cohorts * rounds).max()) / budget.people)
            # Few different ranges, so that doubled budgets share a table.
            table = _table(budget.epsilon, budget.delta, steps, 4.0 ** math.ceil(math.log(passes, 4)))
            return table.noise_multiplier(math.floor(budget.people), cohorts, rounds)
        once = gaussian_noise_multiplier(budget.epsilon, budget.delta)
        people = math.floor(budget.people)
        found = [self._sensitivity(people, int(c), int(t)) for c, t in zip(cohorts, rounds, strict=True)]
        return once * np.array(found)

    def _sensitivity(self, people: int, cohort_size: int, rounds: int) -> float:
        try:
            participation = self.participation(people, cohort_size, rounds)
        except ConfigurationError:
            return math.nan
        if (rounds, participation) not in self._sensitivities:
            plan = self.with_noise(rounds, participation)(1.0)
            self._sensitivities[rounds, participation] = math.sqrt(sensitivity_squared(plan, [(0, rounds)]))
        return self._sensitivities[rounds, participation]

    @functools.cached_property
    def _sensitivities(self) -> dict[tuple[int, Participation], float]:
        return {}


def planner_of(laws: Laws, settings: FederatedSettings, budget: FederatedBudget) -> FederatedPlanner:
    """Make the planner of laws.

    Raises:
      ConfigurationError: `fedlm simulate` refuses what is asked for, or there are no laws for it.
    """
    assert laws.surface is not None
    mechanism = laws.task.get("privacy", "none")
    if math.isinf(budget.epsilon):
        for name in ("cohort_sampler", "min_separation", "max_participations"):
            if getattr(settings, name) is not None:
                raise ConfigurationError(
                    f"{setting(name)} is {getattr(settings, name)}, which does nothing without {setting('privacy')}; "
                    "leave it out"
                )
        return FederatedPlanner(laws.surface, mechanism, None, "uniform", settings)
    if mechanism == "none":
        raise ConfigurationError(
            "the laws are of runs without noise, which say nothing of private ones; measure some with "
            f"{setting('privacy')}"
        )
    if not budget.epsilon >= LEAST_EPSILON:
        raise ConfigurationError(
            f"{setting('epsilon')} is {budget.epsilon:g}, but must be at least {LEAST_EPSILON:g} to be planned for"
        )
    options = {name: laws.task[name] for name in OF_MECHANISMS if laws.task.get(name) is not None}
    privacy = compose(PrivacySettings, privacy=mechanism, target_epsilon=budget.epsilon, delta=budget.delta, **options)
    if privacy.is_distributed:
        raise ConfigurationError(
            f"{setting('mechanism')} is {mechanism}, noise of clients, which is not planned here; take one whose noise "
            "the server adds"
        )
    default: CohortSamplerName = "poisson" if MECHANISMS[mechanism].independent_rounds else "min_separation"
    sampler: CohortSamplerName = settings.cohort_sampler or default
    drawn = {name: getattr(settings, name) for name in ("min_separation", "max_participations")}
    CohortSettings(cohort_sampler=sampler, **{name: value for name, value in drawn.items() if value is not None})
    privacy.check_privacy(sampler, laws.task.get("update_clip_norm"), "uniform", False)
    return FederatedPlanner(laws.surface, mechanism, MECHANISMS[mechanism].options_of(privacy), sampler, settings)
