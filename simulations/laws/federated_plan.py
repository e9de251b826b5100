"""Planning a private federated training by measured laws: people, cohorts and rounds for examples, batches and steps.

As in laws of federated runs, a step is a round, its batch a cohort, and the noise-batch ratio the noise multiplier over
the cohort size. Compute is counted in client trainings, whatever the size of the model.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting import Guarantee, account, calibrate, sensitivity_squared
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation import BoundedParticipation, Participation
from fedlm.fl_core.privacy.plan import PrivacyPlan, plan_noise
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler, PoissonSampler, ShuffledEpochSampler
from fedlm.fl_core.privacy.settings import PrivacySettings
from fedlm.simulations.engine.cohort_settings import CohortSamplerName, CohortSettings
from fedlm.simulations.laws.architectures import Architecture, nearest_architecture
from fedlm.simulations.laws.federated_settings import FederatedSettings
from fedlm.simulations.laws.importing_runs import FEDERATED, OF_MECHANISMS, RATES
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.noise_search import gaussian_noise
from fedlm.simulations.laws.noise_table import LEAST_EPSILON, make_noise_table
from fedlm.simulations.laws.plan import LEVEL, NEAR, Configurations, notes_of, sizes_between
from fedlm.simulations.laws.surface import LossSurface

_COHORTS = {"gaussian": 101, "tree": 51, "tree_honaker": 51}
_COHORTS_OF_OTHERS = 7  # their coefficients take seconds to be chosen for each number of rounds

_table = functools.lru_cache(maxsize=4)(make_noise_table)


class FederatedBudget(NamedTuple):
    """What a training may use.

    Attributes:
      people: training clients to draw from.
      epsilon: at the planner's delta; infinite for a training without privacy.
      client_trainings: cohort size times rounds, at most.
    """

    people: float
    epsilon: float
    client_trainings: float


@dataclass(frozen=True)
class FederatedTraining:
    """A training that can be run, the best of a budget.

    Attributes:
      model: that can be built; None where the architecture of the laws is not known here.
      parameters: M, all of the model's.
      people: training clients, which the guarantee is for.
      cohort_size: clients of a round; on average with Poisson cohorts.
      rounds: of the training.
      client_trainings: the product of the two.
      mechanism: of the noise, that of the runs that were measured; None without privacy.
      cohort_sampler: how cohorts are drawn; None without privacy.
      min_separation: of the sampler min_separation; None with others.
      max_participations: of that sampler too; None for as often as the separation allows.
      rates: learning rates of server and clients, by name.
      noise_multiplier: standard deviation of one draw of noise, in clip norms; 0 without privacy.
      noise_batch_ratio: that over the cohort size.
      loss: predicted, in nats per predicted token, of clients in training.
      band: its lower and upper end; NaN where the laws have no draws.
      target_epsilon: that the noise was found for; infinite without privacy.
      guarantee: by the accountant; None without privacy.
      near: between which values the trainings lie whose loss is near the best, by names.
      considered: trainings within the grid that were looked at.
      doubled: the best loss when a part of the budget is doubled, by name; NaN outside the grid, empty for mechanisms
        of which that takes long.
      notes: what goes beyond what was measured, a sentence each.
    """

    model: Architecture | None
    parameters: int
    people: int
    cohort_size: int
    rounds: int
    client_trainings: int
    mechanism: str | None
    cohort_sampler: str | None
    min_separation: int | None
    max_participations: int | None
    rates: dict[str, float]
    noise_multiplier: float
    noise_batch_ratio: float
    loss: float
    band: tuple[float, float]
    target_epsilon: float
    guarantee: Guarantee | None
    near: dict[str, tuple[float, float]]
    considered: int
    doubled: dict[str, float]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Make a dictionary, JSON-able but for NaN and infinity."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        model = None if self.model is None else self.model._asdict()
        return values | {"model": model, "guarantee": None if self.guarantee is None else self.guarantee.as_json()}


@dataclass(frozen=True, eq=False)
class FederatedPlanner:
    """What plans have in common.

    Attributes:
      surface: the measured loss.
      mechanism: of the noise.
      options: of the mechanism, as in the runs that were measured.
      sampler: how cohorts are drawn.
      delta: at which epsilon is stated.
      settings: limits of rounds, cohorts and participation.
    """

    surface: LossSurface
    mechanism: str
    options: Any
    sampler: str
    delta: float
    settings: FederatedSettings

    def configurations(self, budget: FederatedBudget) -> Configurations:
        """List trainings that spend the budget, or as much of it as the limits allow, and predict their losses. Without
        privacy cohorts are of the measured size, for what larger ones gain was not measured."""
        private = math.isfinite(budget.epsilon)
        cohorts, rounds = self._cohorts(budget, private)
        ratios = self._noise(budget, cohorts, rounds) / cohorts if private else np.zeros(len(cohorts))
        known = np.isfinite(ratios)
        sizes = sizes_between(self.surface)
        parameters = np.repeat(sizes, known.sum())
        cohort, time, ratio = (np.tile(one[known], len(sizes)) for one in (cohorts, rounds, ratios))
        return Configurations(parameters, cohort, time, ratio, self.surface.predict(parameters, time, ratio))

    def doubled(self, budget: FederatedBudget) -> dict[str, float]:
        """Predict what doubling each part of the budget would give: the best loss, by name; NaN outside the grid."""
        if self.mechanism not in _COHORTS:
            return {}
        doubles = {name: 2 * value for name, value in budget._asdict().items() if math.isfinite(value)}
        best = {}
        for name, value in doubles.items():
            losses = self.configurations(budget._replace(**{name: value})).loss
            best[name] = float(np.nanmin(losses)) if np.isfinite(losses).any() else math.nan
        return best

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
        return plan_noise(self.mechanism, rounds, participation, self.options)

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
            table = _table(budget.epsilon, self.delta, steps, (1.0, 4.0 ** math.ceil(math.log(passes, 4))))
            return table.noise_multiplier(math.floor(budget.people), cohorts, rounds)
        once = gaussian_noise(budget.epsilon, self.delta)
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


def plan_federated(
    laws: Laws,
    settings: FederatedSettings,
    epsilon: float,
    delta: float | None = None,
    near: float = NEAR,
) -> FederatedTraining:
    """Find the best training of a budget, and account it exactly.

    Args:
      laws: with a surface, of federated runs.
      settings: people, client trainings, and how cohorts are drawn.
      epsilon: that the whole training may spend; infinite for one without privacy.
      delta: at which; the number of people to the power -1.1 where None.
      near: relative loss above the best that still counts as near it.

    Raises:
      ConfigurationError: the laws are not of federated runs, the accountant refuses what is asked for, or no training
        lies within the measured grid.
    """
    if laws.task.get("command") != FEDERATED or laws.surface is None:
        raise ConfigurationError(
            "the laws are not of federated runs: measure with `fedlm compare`, take the runs in with `fedlm laws "
            "import RUN --out FILE`, and fit that file"
        )
    if settings.people is None or settings.client_trainings is None:
        raise ConfigurationError("a federated plan needs --people and --client-trainings; give both")
    surface = laws.surface
    budget = FederatedBudget(math.floor(settings.people), epsilon, settings.client_trainings)
    planner = _planner(laws, settings, budget, min(budget.people**-1.1, 0.5) if delta is None else delta)
    found = planner.configurations(budget)
    known = np.isfinite(found.loss)
    if not known.any():
        raise ConfigurationError(_outside(surface, budget, found))
    best = int(np.nanargmin(found.loss))
    chosen = known & (found.loss <= (1 + near) * found.loss[best])
    model = nearest_architecture(surface, float(found.parameters[best]))
    parameters = round(found.parameters[best]) if model is None else model.parameters
    cohort_size, rounds = int(found.batch_size[best]), int(found.steps[best])
    plan = None
    if math.isfinite(epsilon):
        participation = planner.participation(int(budget.people), cohort_size, rounds)
        plan = calibrate(planner.with_noise(rounds, participation), planner.delta, epsilon=epsilon)
    noise = 0.0 if plan is None else plan.noise_multiplier
    at = parameters, rounds, noise / cohort_size
    loss = surface.predict(*at).item()
    if not math.isfinite(loss):
        raise ConfigurationError(
            f"the nearest model that can be built has {parameters:,} parameters, and with {rounds:,} rounds and a "
            f"noise-batch ratio of {at[2]:.3g} lies outside what was measured; give another budget, or other laws"
        )
    low, high = (end.item() for end in surface.band(*at, level=LEVEL))
    bound = None if plan is None or planner.sampler != "min_separation" else plan.participation
    rate = laws.task.get("learning_rate", RATES[0])
    return FederatedTraining(
        model=model,
        parameters=parameters,
        people=int(budget.people),
        cohort_size=cohort_size,
        rounds=rounds,
        client_trainings=cohort_size * rounds,
        mechanism=None if plan is None else planner.mechanism,
        cohort_sampler=None if plan is None else planner.sampler,
        min_separation=getattr(bound, "min_separation", None),
        max_participations=getattr(bound, "max_participations", None),
        rates={name: laws.task[name] for name in RATES if name in laws.task}
        | {rate: surface.learning_rate(*at).item()},
        noise_multiplier=noise,
        noise_batch_ratio=at[2],
        loss=loss,
        band=(low, high),
        target_epsilon=epsilon,
        guarantee=None if plan is None else account(plan, planner.delta),
        near={_NAMES.get(name, name): ends for name, ends in found.ranges(chosen).items()},
        considered=int(known.sum()),
        doubled=planner.doubled(budget),
        notes=tuple(_notes(surface, parameters, cohort_size, rounds, plan)),
    )


_NAMES = {"batch_size": "cohort_size", "steps": "rounds"}


def _planner(laws: Laws, settings: FederatedSettings, budget: FederatedBudget, delta: float) -> FederatedPlanner:
    """Refuse what `fedlm simulate` refuses, and what there are no laws for."""
    assert laws.surface is not None
    mechanism = laws.task.get("privacy", "none")
    if math.isinf(budget.epsilon):
        for name in ("cohort_sampler", "min_separation", "max_participations"):
            if getattr(settings, name) is not None:
                raise ConfigurationError(
                    f"{name} is {getattr(settings, name)}, which does nothing without privacy; leave it out"
                )
        return FederatedPlanner(laws.surface, mechanism, None, "uniform", delta, settings)
    if mechanism == "none":
        raise ConfigurationError(
            "the laws are of runs without noise, which say nothing of private ones; measure some with --privacy"
        )
    if not budget.epsilon >= LEAST_EPSILON:
        raise ConfigurationError(
            f"epsilon is {budget.epsilon:g}, but must be at least {LEAST_EPSILON:g} to be planned for"
        )
    options = {name: laws.task[name] for name in OF_MECHANISMS if laws.task.get(name) is not None}
    privacy = compose(PrivacySettings, privacy=mechanism, target_epsilon=budget.epsilon, delta=delta, **options)
    default: CohortSamplerName = "poisson" if MECHANISMS[mechanism].independent_rounds else "min_separation"
    sampler: CohortSamplerName = settings.cohort_sampler or default
    drawn = {name: getattr(settings, name) for name in ("min_separation", "max_participations")}
    CohortSettings(cohort_sampler=sampler, **{name: value for name, value in drawn.items() if value is not None})
    privacy.check_privacy(sampler, laws.task.get("update_clip_norm"), "uniform", False)
    return FederatedPlanner(
        laws.surface, mechanism, MECHANISMS[mechanism].options_of(privacy), sampler, delta, settings
    )


def _outside(surface: LossSurface, budget: FederatedBudget, found: Configurations) -> str:
    """Say why there is no plan."""
    measured = f"{surface.steps[0]:g} to {surface.steps[-1]:g} rounds"
    if not len(found.loss):
        return (
            f"no training of {measured} fits {budget.people:,.0f} people, {budget.client_trainings:,.0f} client "
            "trainings and the limits that were given; give more of them, or laws of fewer rounds"
        )
    least, most = found.noise_batch_ratio.min(), found.noise_batch_ratio.max()
    known = surface.noise_batch_ratios
    ratios = f"{known[0]:.3g} to {known[-1]:.3g}" if len(known) else "0"
    return (
        f"the budget asks for noise-batch ratios of {least:.3g} to {most:.3g}, and the laws know losses for {ratios} "
        "alone; nothing is planned outside what was measured. Give another epsilon, more people or client trainings, "
        "or laws of other noise"
    )


def _notes(
    surface: LossSurface, parameters: float, cohort_size: int, rounds: int, plan: PrivacyPlan | None
) -> list[str]:
    notes = notes_of(surface, parameters, surface.batch_size, rounds, surface.length)
    if cohort_size < surface.batch_size:
        notes.append(
            f"cohorts are below the {surface.batch_size} clients of the runs that were measured, so that updates vary "
            "more than there, which the loss does not take into account"
        )
    if plan is not None and plan.coefficients:
        notes.append(
            f"extrapolated: the coefficients of {plan.mechanism} noise are chosen for rounds and participation, and so "
            "are not quite those of the runs that were measured"
        )
    return notes
