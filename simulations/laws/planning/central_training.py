"""A plan as a training that can be run: a model that can be built, whole numbers, noise by the accountant itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.accounting.delta import large_delta
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.fl_core.privacy.promise.central_plan import EXAMPLE, central_plan
from fedlm.fl_core.privacy.promise.guarantee import Guarantee, account, calibrate
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.spending import calibrate_total
from fedlm.fl_core.privacy.statement import state_plan
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.planning.architectures import Architecture, nearest_architecture
from fedlm.simulations.laws.planning.central_planner import (
    FLOPS,
    UNCOUNTED_VOCABULARY,
    Budget,
    Plan,
    note_of_noise,
    notes_of,
)
from fedlm.simulations.laws.planning.configurations import predict
from fedlm.simulations.pretraining.settings import Pretraining

_OF_TASK = ("clip_norm", "schedule", "warmup_steps", "beta1", "beta2", "adam_epsilon", "packing")
"""Settings of the trainings that were measured, which a planned one takes over."""
_PACKED = (
    "examples are packed sequences: a document or a person may be spread over several, and the promise is for each of "
    "them, not for a document or a person; N counts sequences"
)


class TrainingData(NamedTuple):
    """What is to be trained on.

    Attributes:
      examples: how many there are.
      vocabulary_size: of its tokens.
      unit: what an example is, in the words of a guarantee.
      protects: what a promise about such units covers, and what it does not, in words.
      vocabulary: where it comes from.
    """

    examples: int
    vocabulary_size: int
    unit: str
    protects: str
    vocabulary: VocabularyOrigin


@dataclass(frozen=True)
class ChosenTraining:
    """A training that can be run.

    Attributes:
      model: that can be built; None where the architecture of the laws is not known here.
      parameters: M, all of the model's.
      batch_size: B, examples of a step on average.
      steps: T.
      length: tokens of an example.
      compute: 6 M B length T, in floating-point operations.
      examples: N, which the guarantee is for.
      learning_rate: the highest of the schedule.
      noise_multiplier: standard deviation of the noise on a step's sum, in clip norms; 0 without privacy.
      noise_batch_ratio: that over the batch size.
      loss: predicted, in nats per predicted token.
      band: its lower and upper end; NaN where the laws have no draws.
      target_epsilon: that the noise was found for; infinite without privacy.
      guarantee: of the training, with Poisson batches of N examples, and of a vocabulary that has an epsilon; None
        without privacy.
      covers: what the guarantee covers and what it does not, a sentence each.
      notes: what goes beyond what was measured, a sentence each.
    """

    model: Architecture | None
    parameters: int
    batch_size: int
    steps: int
    length: int
    compute: float
    examples: int
    learning_rate: float
    noise_multiplier: float
    noise_batch_ratio: float
    loss: float
    band: tuple[float, float]
    target_epsilon: float
    guarantee: Guarantee | None
    covers: tuple[str, ...]
    notes: tuple[str, ...]


def choose_training(laws: Laws, plan: Plan, data: TrainingData | None = None) -> ChosenTraining:
    """Make the best configuration of a plan into a training, account it, and predict its loss again.

    Args:
      laws: by which was planned, with a surface.
      plan: what was found.
      data: to train on; where None the vocabulary is as large as that of the measured models.

    Raises:
      ConfigurationError: the training lies outside the measured grid, or the data's vocabulary has spent epsilon.
    """
    surface, budget = laws.surface, plan.budget
    assert surface is not None
    model = nearest_architecture(surface, plan.best["parameters"], None if data is None else data.vocabulary_size)
    parameters = round(plan.best["parameters"]) if model is None else model.parameters
    # A whole batch, and the model that can be built, may ask for a little more noise than was measured: a batch that is
    # larger by one or two asks for less.
    nearest = max(1, min(round(plan.best["batch_size"]), math.floor(budget.examples)))
    for batch_size in range(nearest, min(nearest + 2, math.floor(budget.examples)) + 1):
        # The budget may allow more or fewer steps than there are laws for.
        allowed = round(budget.compute / (FLOPS * parameters * batch_size * plan.length))
        steps = max(math.ceil(surface.steps[0]), min(allowed, math.floor(surface.steps[-1])))
        least_noise = batch_size * float(surface.with_measured_noise(0.0))
        guarantee = _accounted(budget, batch_size, steps, least_noise=least_noise, data=data)
        noise = 0.0 if guarantee is None else guarantee.noise_multiplier
        predicted = predict(surface, parameters, steps, None if guarantee is None else noise / batch_size)
        if math.isfinite(predicted.loss):
            break
    predicted.refuse_unmeasured(parameters, f"{steps:,} steps")
    return ChosenTraining(
        model=model,
        parameters=parameters,
        batch_size=batch_size,
        steps=steps,
        length=plan.length,
        compute=FLOPS * parameters * batch_size * steps * plan.length,
        examples=math.floor(budget.examples),
        learning_rate=predicted.learning_rate,
        noise_multiplier=noise,
        noise_batch_ratio=predicted.noise_batch_ratio,
        loss=predicted.loss,
        band=predicted.band,
        target_epsilon=budget.epsilon,
        guarantee=guarantee,
        covers=() if guarantee is None else _covers(laws, budget, data),
        notes=(
            *notes_of(surface, parameters, batch_size, steps, length=plan.length),
            *_repeated(budget, batch_size * steps),
            *([note_of_noise(budget.epsilon)] if guarantee is not None and noise == least_noise else []),
            *(_UNCLIPPED if math.isinf(budget.epsilon) and laws.task.get("clip_norm") is not None else ()),
        ),
    )


_UNCLIPPED = ("extrapolated: the measured trainings clip gradients, and a training without privacy does not",)


def _repeated(budget: Budget, drawn: int) -> list[str]:
    passes = drawn / math.floor(budget.examples)
    if passes <= 1:
        return []
    return [
        f"extrapolated: the training sees its examples {passes:.3g} times, and the loss is that of examples that are "
        "seen for the first time"
    ]


def _accounted(
    budget: Budget, batch_size: int, steps: int, *, least_noise: float, data: TrainingData | None
) -> Guarantee | None:
    """Find the noise by the accountant itself, no less than was measured, and state what it gives, as a run would."""
    if math.isinf(budget.epsilon):
        return None
    units, unit = math.floor(budget.examples), EXAMPLE if data is None else data.unit

    def with_noise(noise: float) -> PrivacyPlan:
        return central_plan(units, batch_size, steps, noise, unit=unit)

    if data is None:
        plan = calibrate(with_noise, budget.delta, epsilon=budget.epsilon)
        return account(_noised(plan, with_noise, least_noise), budget.delta)
    origins = Origins(vocabulary=data.vocabulary)
    plan = calibrate_total(with_noise, budget.delta, epsilon=budget.epsilon, rho=None, origins=origins)
    plan = _noised(plan, with_noise, least_noise)
    return state_plan(plan, budget.delta, origins.as_json()).total


def _noised(plan: PrivacyPlan, with_noise: Callable[[float], PrivacyPlan], least: float) -> PrivacyPlan:
    return plan if plan.noise_multiplier >= least else with_noise(least)


def _covers(laws: Laws, budget: Budget, data: TrainingData | None) -> tuple[str, ...]:
    if data is None:
        packed = [_PACKED] if laws.task.get("packing", "packed") == "packed" else []
        words = [*packed, UNCOUNTED_VOCABULARY]
    else:
        words = [data.protects, data.vocabulary.stated_for(data.unit).sentence()]
    large = large_delta(budget.delta, math.floor(budget.examples))
    return (*words, *([] if large is None else [large]))


def settings_of(chosen: ChosenTraining, laws: Laws, model: str) -> dict[str, Any]:
    """Give the options of `fedlm pretrain` for a training: those of the trainings that were measured, and the plan's.

    The run is given epsilon and delta, and finds the noise for as many examples as its data has; where epsilon asks for
    less noise than was measured it is given the noise.

    Args:
      chosen: the training.
      laws: by which was planned.
      model: name, or path of a description.

    Raises:
      DataError: with the settings of the laws there is no such run.
    """
    try:
        settings = _settings(chosen, laws, model)
        compose(Pretraining, **settings | {"data": Path()})
    except (KeyError, TypeError, ConfigurationError) as error:
        raise DataError(
            f"the settings that the laws name make no training that can be run ({error}); fit them again with `fedlm "
            "laws fit`"
        ) from error
    return settings


def _settings(chosen: ChosenTraining, laws: Laws, model: str) -> dict[str, Any]:
    task = {name: laws.task[name] for name in _OF_TASK if laws.task.get(name) is not None}
    task["warmup_steps"] = min(task.get("warmup_steps", 0), chosen.steps - 1)
    if laws.task.get("schedule", "constant") != "constant":
        task["final_learning_rate"] = chosen.learning_rate * laws.task["final_rate"]
    settings: dict[str, Any] = {
        **{"model": model, "steps": chosen.steps, "batch_size": chosen.batch_size, "length": chosen.length},
        **{"optimizer": "adam", "learning_rate": chosen.learning_rate},
        **task,
    }
    if chosen.guarantee is None:
        settings.pop("clip_norm", None)
        return settings | {"privacy": "none"}
    if note_of_noise(chosen.target_epsilon) in chosen.notes:
        return settings | {"noise_multiplier": chosen.noise_multiplier, "delta": chosen.guarantee.delta}
    return settings | {"epsilon": chosen.target_epsilon, "delta": chosen.guarantee.delta}
