"""The optimizers of central training, and how their learning rate moves."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import optax

from fedlm.fl_core.errors import ConfigurationError, setting

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleName = Literal["constant", "linear", "cosine", "exponential"]


class Constants(NamedTuple):
    """What optimizers have beside a learning rate, each some of it."""

    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


OPTIMIZERS: dict[str, Callable[[optax.Schedule, Constants], optax.GradientTransformation]] = {
    "sgd": lambda rate, by: optax.sgd(rate, by.momentum or None),
    "adam": lambda rate, by: optax.adam(rate, by.beta1, by.beta2, by.epsilon),
    "adamw": lambda rate, by: optax.adamw(rate, by.beta1, by.beta2, by.epsilon, weight_decay=by.weight_decay),
}
"""From names to optax optimizers. With noised gradients they are DP-SGD, DP-Adam and DP-AdamW: what comes after the
noise costs no privacy."""


def learning_rates(
    schedule: ScheduleName, peak: float, *, warmup_steps: int, steps: int, final: float = 0.0
) -> optax.Schedule:
    """Make the learning rate of every step: it grows in equal steps to its peak during the warm-up, then stays or falls
    until it would be `final` in the step after the last. Raises ConfigurationError where the warm-up does not leave a
    step, or the schedule does not fall to such a rate."""
    if not 0 <= final < peak:
        raise ConfigurationError(
            f"{setting('final_learning_rate')} is {final}, but must be at least 0 and below the learning rate, {peak}"
        )
    if schedule == "constant" and final:
        raise ConfigurationError(
            f"{setting('final_learning_rate')} does nothing with the schedule constant; leave it out"
        )
    if schedule == "exponential" and not final:
        raise ConfigurationError(
            f"the schedule exponential needs a {setting('final_learning_rate')} above 0, for by the same factor in "
            "every step no rate falls to 0"
        )
    if not 0 <= warmup_steps < steps:
        raise ConfigurationError(
            f"{setting('warmup_steps')} is {warmup_steps}, but must lie between 0 and steps - 1, {steps - 1}"
        )
    after = steps - warmup_steps
    decays = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, final, after),
        "cosine": optax.cosine_decay_schedule(peak, after, final / peak),
        "exponential": optax.exponential_decay(peak, after, final / peak if final else 0.5),
    }
    warmup = optax.linear_schedule(peak / max(warmup_steps, 1), peak, max(warmup_steps - 1, 1))
    return optax.join_schedules([warmup, decays[schedule]], [warmup_steps])
