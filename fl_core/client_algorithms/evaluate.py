"""Evaluation on devices: a client scores the server's model on its own text, and trains nothing.

What it sends is five numbers in place of an update, of norm 1 at most, so that they are clipped, summed, masked and
noised as updates are. Each is moved to lie around 0, which lets the same noise hide more.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import Doc

from fedlm.fl_core.client_algorithms.interface import Broadcast, ClientAlgorithm, LocalGradient, LocalState
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import Positive
from fedlm.models.losses import ExampleSums

MOST_NORM = 1.0
"""Of what a client sends."""
_COUNTED = ("loss", "tokens", "scored_correct", "scored_tokens")
# One number is 1, and each of the four others lies within 1/2 of 0.
_LONGEST = math.sqrt(2)


@dataclass(frozen=True)
class Evaluate(ClientAlgorithm):
    """Scores of the server's model, with each device counted once.

    Example:
      >>> Evaluate(largest_loss=8.0).trains
      False
    """

    help = "scores the model on each device's text and trains nothing (docs/operating.md)"
    trains = False
    largest_loss: Annotated[
        Positive,
        Doc(
            "Mean loss of a token, in nats, that evaluate counts of a device at most: a larger one counts as this. "
            "Noise and intervals grow with it."
        ),
    ] = 10.0

    def __post_init__(self) -> None:
        check_value_types(self)

    def init(self, server: Broadcast) -> LocalState:
        return LocalState((), jnp.zeros(len(_COUNTED)))

    def step(
        self, server: Broadcast, local: LocalState, gradient: LocalGradient, learning_rate: jax.typing.ArrayLike
    ) -> LocalState:
        return local

    def score(self, local: LocalState, sums: ExampleSums) -> LocalState:
        batch = jnp.stack([jnp.sum(getattr(sums, name)) for name in _COUNTED])
        return local._replace(memory=local.memory + batch)

    def finish(self, server: Broadcast, local: LocalState) -> dict[str, jax.Array]:
        loss, tokens, correct, scored = local.memory
        loss = loss / jnp.maximum(tokens, 1.0)
        # A loss that is no number is the worst.
        part = jnp.where(loss <= self.largest_loss, loss / self.largest_loss, 1.0)
        below = jnp.where(loss < self.largest_loss, 1.0, 0.0)
        others = jnp.stack([part, jnp.square(2 * part - 1), correct / jnp.maximum(scored, 1.0), below])
        return {"evaluated": jnp.concatenate([jnp.ones(1), others - 0.5]) / _LONGEST}

    def bounded(self, sent: Any) -> Any:
        part, _, accuracy, below = jnp.clip(_LONGEST * sent["evaluated"][1:], -0.5, 0.5)
        others = jnp.stack([part, 4 * jnp.square(part) - 0.5, accuracy, below])
        return {"evaluated": jnp.concatenate([jnp.ones(1), others]) / _LONGEST}

    def report(self, total: Any, noise: float) -> dict[str, float]:
        devices, *others = (_LONGEST * np.asarray(total["evaluated"], np.float64)).tolist()
        losses, squares, accuracies, below = (other + devices / 2 for other in others)
        return {
            "evaluated_devices": devices,
            "evaluated_losses": self.largest_loss * losses,
            "evaluated_squares": squares,
            "evaluated_accuracies": accuracies,
            "evaluated_below": below,
            "evaluated_noise": _LONGEST * noise,
        }


ALGORITHM = Evaluate
