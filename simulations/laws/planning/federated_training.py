"""Planning a private federated training by measured laws: of people and client trainings, the best."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.composed_settings import compose, defaults_as_json
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.delta import large_delta, planned_delta
from fedlm.fl_core.privacy.promise.guarantee import Guarantee, account, calibrate
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.simulations.engine.cohort_settings import CohortSettings
from fedlm.simulations.experiments.configuration import MAY_MOVE, Experiment
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.measuring.imported_runs import FEDERATED, OF_A_RUN, OF_MECHANISMS, RATES
from fedlm.simulations.laws.planning.architectures import Architecture, nearest_architecture
from fedlm.simulations.laws.planning.central_planner import UNCOUNTED_VOCABULARY, note_of_noise, notes_of
from fedlm.simulations.laws.planning.configurations import NEAR, Configurations, Doubled, Prediction, predict
from fedlm.simulations.laws.planning.federated_planner import FederatedBudget, FederatedPlanner, planner_of
from fedlm.simulations.laws.planning.federated_settings import FederatedSettings
from fedlm.simulations.laws.surface.loss_surface import LossSurface


@dataclass(frozen=True)
class ChosenFederatedTraining:
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
      doubled: the best when a part of the budget is doubled, by name; empty for mechanisms of which that takes long.
      covers: what the guarantee covers and what it does not, a sentence each.
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
    doubled: dict[str, Doubled]
    covers: tuple[str, ...]
    notes: tuple[str, ...]


def plan_federated(
    laws: Laws,
    settings: FederatedSettings,
    epsilon: float,
    delta: float | None = None,
    *,
    near: float = NEAR,
) -> ChosenFederatedTraining:
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
    people, client_trainings = _budgeted(laws, settings)
    budget = FederatedBudget(people, epsilon, planned_delta(delta, people), client_trainings)
    planner = planner_of(laws, settings, budget)
    found = planner.configurations(budget)
    chosen = _choose(planner, budget, found)
    rate = laws.task.get("learning_rate", RATES[0])
    return ChosenFederatedTraining(
        model=chosen.model,
        parameters=chosen.parameters,
        people=people,
        cohort_size=chosen.cohort_size,
        rounds=chosen.rounds,
        client_trainings=chosen.cohort_size * chosen.rounds,
        rates={name: laws.task[name] for name in RATES if name in laws.task} | {rate: chosen.predicted.learning_rate},
        noise_multiplier=chosen.noise,
        noise_batch_ratio=chosen.predicted.noise_batch_ratio,
        loss=chosen.predicted.loss,
        band=chosen.predicted.band,
        target_epsilon=epsilon,
        near={_NAMES.get(name, name): ends for name, ends in found.ranges(found.near_best(near)).items()},
        considered=int(found.known.sum()),
        doubled=planner.doubled(budget),
        notes=_notes(planner.surface, chosen, epsilon),
        **_promise(planner, budget, chosen.plan),
    )


class _Chosen(NamedTuple):
    """The best training."""

    model: Architecture | None
    parameters: int
    cohort_size: int
    rounds: int
    plan: PrivacyPlan | None
    is_least_noise: bool  # whether its noise is the least that was measured
    predicted: Prediction

    @property
    def noise(self) -> float:
        return 0.0 if self.plan is None else self.plan.noise_multiplier


def _budgeted(laws: Laws, settings: FederatedSettings) -> tuple[int, float]:
    """Give people and client trainings; refuse laws and settings without them."""
    if laws.task.get("command") != FEDERATED or laws.surface is None:
        raise ConfigurationError(
            "the laws are not of federated runs: measure with `fedlm compare`, take the runs in with `fedlm laws "
            "import RUN --out FILE`, and fit that file"
        )
    if settings.people is None or settings.client_trainings is None:
        raise ConfigurationError(
            f"a federated plan needs {setting('people')} and {setting('client_trainings')}; give both"
        )
    return math.floor(settings.people), settings.client_trainings


def _choose(planner: FederatedPlanner, budget: FederatedBudget, found: Configurations) -> _Chosen:
    surface, best = planner.surface, found.best()
    if best is None:
        raise ConfigurationError(_outside(surface, budget, found))
    model = nearest_architecture(surface, float(found.parameters[best]))
    parameters = round(found.parameters[best]) if model is None else model.parameters
    cohort_size, rounds = int(found.batch_size[best]), int(found.steps[best])
    least_noise = cohort_size * float(surface.with_measured_noise(0.0))
    plan = _accounted(planner, budget, cohort_size, rounds, least_noise=least_noise)
    predicted = predict(surface, parameters, rounds, None if plan is None else plan.noise_multiplier / cohort_size)
    predicted.refuse_unmeasured(parameters, f"{rounds:,} rounds")
    is_least = plan is not None and plan.noise_multiplier == least_noise
    return _Chosen(model, parameters, cohort_size, rounds, plan, is_least, predicted)


def _accounted(
    planner: FederatedPlanner, budget: FederatedBudget, cohort_size: int, rounds: int, *, least_noise: float
) -> PrivacyPlan | None:
    """Find the noise by the accountant itself, no less than was measured; None without privacy."""
    if math.isinf(budget.epsilon):
        return None
    participation = planner.participation(math.floor(budget.people), cohort_size, rounds)
    with_noise = planner.with_noise(rounds, participation)
    plan = calibrate(with_noise, budget.delta, epsilon=budget.epsilon)
    return plan if plan.noise_multiplier >= least_noise else with_noise(least_noise)


def _promise(planner: FederatedPlanner, budget: FederatedBudget, plan: PrivacyPlan | None) -> dict[str, Any]:
    """Give what a training has with privacy alone."""
    names = ("mechanism", "cohort_sampler", "min_separation", "max_participations", "guarantee")
    if plan is None:
        return dict.fromkeys(names) | {"covers": ()}
    bound = plan.participation if planner.sampler == "min_separation" else None
    limits = (getattr(bound, name, None) for name in ("min_separation", "max_participations"))
    found = (planner.mechanism, planner.sampler, *limits, account(plan, budget.delta))
    return dict(zip(names, found, strict=True)) | {"covers": _covers(budget.delta, math.floor(budget.people))}


def settings_of(found: ChosenFederatedTraining, laws: Laws, model: str) -> dict[str, Any]:
    """Give the options of `fedlm simulate` for a training: those of the runs that were measured, and the plan's.

    The run is given epsilon and delta, and finds the noise for as many clients as its data has; where epsilon asks for
    less noise than was measured it is given the noise.

    Args:
      found: the training.
      laws: by which was planned.
      model: name, or path of a description.

    Raises:
      ConfigurationError: no such run is possible.
    """
    defaults = defaults_as_json(Experiment)
    task = {
        name: value
        for name, value in laws.task.items()
        if name in defaults and name not in OF_A_RUN - {"privacy"} and value is not None and value != defaults[name]
    }
    noise = {name: task.pop(name) for name in ("privacy", *OF_MECHANISMS) if name in task}
    for field in dataclasses.fields(CohortSettings):
        task.pop(field.name, None)
    settings = {"model": model, "rounds": found.rounds, "cohort_size": found.cohort_size, **found.rates, **task}
    if found.guarantee is not None:
        drawn = {name: getattr(found, name) for name in ("cohort_sampler", "min_separation", "max_participations")}
        settings |= {name: value for name, value in drawn.items() if value is not None}
        spent = {"target_epsilon": found.target_epsilon}
        if note_of_noise(found.target_epsilon) in found.notes:
            spent = {"noise_multiplier": found.noise_multiplier}
        settings |= noise | spent | {"delta": found.guarantee.delta}
    paths = {name: Path(settings[name]) for name in MAY_MOVE if name in settings}
    compose(Experiment, **settings | paths | {"data": Path()})
    return settings


_NAMES = {"batch_size": "cohort_size", "steps": "rounds"}


def _covers(delta: float, people: int) -> tuple[str, ...]:
    large = large_delta(delta, people)
    return (UNCOUNTED_VOCABULARY, *([] if large is None else [large]))


def _outside(surface: LossSurface, budget: FederatedBudget, found: Configurations) -> str:
    """Say why there is no plan."""
    if len(found.loss):
        return found.noise_outside(surface, "more people or client trainings")
    return (
        f"no training of {surface.steps[0]:g} to {surface.steps[-1]:g} rounds fits {budget.people:,.0f} people, "
        f"{budget.client_trainings:,.0f} client trainings and the limits that were given; give more of them, or laws "
        "of fewer rounds"
    )


def _notes(surface: LossSurface, chosen: _Chosen, epsilon: float) -> tuple[str, ...]:
    notes = notes_of(surface, chosen.parameters, surface.batch_size, chosen.rounds, length=surface.length)
    if chosen.cohort_size < surface.batch_size:
        notes.append(
            f"cohorts are smaller than the {surface.batch_size} clients of the measured runs, so updates vary more; "
            "the predicted loss leaves that out"
        )
    if chosen.plan is not None and chosen.plan.coefficients:
        notes.append(
            f"extrapolated: the coefficients of {chosen.plan.mechanism} noise are chosen for rounds and participation, "
            "and so differ from those of the measured runs"
        )
    return (*notes, *([note_of_noise(epsilon)] if chosen.is_least_noise else []))
