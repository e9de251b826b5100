"""A plan as a training that can be run: a model that can be built, whole numbers, noise by the accountant itself."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting import Guarantee, account, calibrate
from fedlm.fl_core.privacy.central_plan import EXAMPLE, central_plan
from fedlm.simulations.laws.architectures import Architecture, nearest_architecture
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.plan import FLOPS, LEVEL, Budget, Plan, notes_of

_OF_TASK = ("clip_norm", "schedule", "warmup_steps", "beta1", "beta2", "adam_epsilon", "packing")
"""Settings of the trainings that were measured, which a planned one takes over."""


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
      guarantee: of the training, with Poisson batches of N examples; None without privacy.
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
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Make a dictionary, JSON-able but for NaN."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        model = None if self.model is None else self.model._asdict()
        guarantee = None if self.guarantee is None else self.guarantee.as_json()
        return fields | {"model": model, "guarantee": guarantee}


def choose_training(laws: Laws, plan: Plan, vocabulary_size: int | None = None) -> ChosenTraining:
    """Make the best configuration of a plan into a training, account it, and predict its loss again.

    Args:
      laws: by which was planned, with a surface.
      plan: what was found.
      vocabulary_size: of the data; that of the measured models where None.

    Raises:
      ConfigurationError: the training lies outside the measured grid.
    """
    surface, budget = laws.surface, plan.budget
    assert surface is not None
    model = nearest_architecture(surface, plan.best["parameters"], vocabulary_size)
    parameters = round(plan.best["parameters"]) if model is None else model.parameters
    batch_size = max(1, min(round(plan.best["batch_size"]), math.floor(budget.examples)))
    steps = max(1, round(budget.compute / (FLOPS * parameters * batch_size * plan.length)))
    guarantee = _accounted(budget, batch_size, steps)
    noise = 0.0 if guarantee is None else guarantee.noise_multiplier
    at = parameters, steps, noise / batch_size
    loss, rate = surface.predict(*at).item(), surface.learning_rate(*at).item()
    if not math.isfinite(loss):
        raise ConfigurationError(
            f"the nearest model that can be built has {parameters:,} parameters, and with {steps:,} steps and a "
            f"noise-batch ratio of {at[2]:.3g} lies outside what was measured; give another budget, or other laws"
        )
    low, high = (end.item() for end in surface.band(*at, level=LEVEL))
    return ChosenTraining(
        model=model,
        parameters=parameters,
        batch_size=batch_size,
        steps=steps,
        length=plan.length,
        compute=FLOPS * parameters * batch_size * steps * plan.length,
        examples=math.floor(budget.examples),
        learning_rate=rate,
        noise_multiplier=noise,
        noise_batch_ratio=at[2],
        loss=loss,
        band=(low, high),
        target_epsilon=budget.epsilon,
        guarantee=guarantee,
        notes=tuple(notes_of(surface, parameters, batch_size, steps, plan.length)),
    )


def _accounted(budget: Budget, batch_size: int, steps: int) -> Guarantee | None:
    """Find the least noise by the accountant itself, and state what it gives."""
    if math.isinf(budget.epsilon):
        return None
    units = math.floor(budget.examples)
    plan = calibrate(
        lambda noise: central_plan(units, batch_size, steps, noise, unit=EXAMPLE),
        budget.delta,
        epsilon=budget.epsilon,
    )
    return account(plan, budget.delta)


def settings_of(chosen: ChosenTraining, laws: Laws, model: str) -> dict[str, Any]:
    """Give the options of `fedlm pretrain` for a training: those of the trainings that were measured, and the plan's.

    The run is given epsilon and delta, and finds the noise for as many examples as its data has.

    Args:
      chosen: the training.
      laws: by which was planned.
      model: name, or path of a description.
    """
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
    return settings | {"epsilon": chosen.target_epsilon, "delta": chosen.guarantee.delta}
