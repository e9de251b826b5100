"""What clients' integers mean in a secure sum: updates on a grid and what is told beside them, or updates with noise.

Each kind says what clients are told of it, what a roster says of it, and what a sum without masks is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.distributed_noise.lattice import Lattice, rotation_seed
from fedlm.fedlm_client.secure_aggregation.masks import LEAST_BITS, MOST_BITS, Words
from fedlm.fedlm_client.secure_aggregation.sum_vector import SumLayout, Told
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.exact_sums import grid_step, number_of_coordinates, shaped
from fedlm.fl_core.privacy.distributed_rounds import IntegerSum
from fedlm.fl_core.rounds.aggregation import CohortAggregate, empty_aggregate
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.models.base import Params

_MOST_LOSS, _MOST_NORM, _MOST_GRADIENT = 32.0, 64.0, 1024.0


class SummedIntegers(Protocol):
    """What clients' integers mean.

    Attributes:
      bits: b; sums are modulo 2^b.
      length: integers of a client's vector.
    """

    @property
    def bits(self) -> int: ...

    @property
    def length(self) -> int: ...

    def told(self, plan: RoundPlan) -> messages.SecureSum:
        """Say what clients of a round need to know."""
        ...

    def rules(self, plan: RoundPlan) -> dict[str, Any]:
        """Say what the roster of a round says of it: fields of `Parameters`."""
        ...

    def charge(self, round_number: int, /) -> None:
        """Enter a round where it counts as released; before any client sends integers for it."""
        ...

    def aggregate(self, total: Words, clients: int, plan: RoundPlan) -> CohortAggregate:
        """Read a sum without masks, of so many clients; of none, it is any words."""
        ...


@dataclass(frozen=True)
class ExactSums:
    """Updates on the grid of private sums, and what else is told of training; without noise.

    Attributes:
      like: arrays, or shapes, of an update.
      layout: of a client's integers.
      bits: b; no sum wraps.
    """

    like: Params
    layout: SumLayout
    bits: int

    @property
    def length(self) -> int:
        return number_of_coordinates(self.like) + len(self.layout.bounds)

    def told(self, plan: RoundPlan) -> messages.SecureSum:
        layout = self.layout
        return messages.SecureSum(clip_norm=layout.clip_norm, step=layout.step, bounds=layout.bounds)

    def rules(self, plan: RoundPlan) -> dict[str, Any]:
        layout = self.layout
        sizes = {"clip_norm": layout.clip_norm, "scale": 1 / layout.step, "noise": "", "variance": 0.0}
        return sizes | {"largest": layout.largest, "rotation": b""}

    def charge(self, round_number: int, /) -> None:
        """Exact sums have no ledger."""

    def aggregate(self, total: Words, clients: int, plan: RoundPlan) -> CohortAggregate:
        values, told = self.layout.read(total if clients else np.zeros_like(total), self.bits)
        return empty_aggregate({})._replace(
            delta=shaped(values, self.like),
            weight=jnp.float32(clients),
            clients=jnp.float32(clients),
            clipped=jnp.float32(told.clipped),
            update_norm=jnp.float32(told.update_norm),
            training=TrainingSums(*map(jnp.float32, (told.loss, told.tokens, told.gradient_norm))),
            examples=jnp.float32(told.examples),
        )


@dataclass(frozen=True)
class NoisedSums:
    """Updates with noise of each client. Nothing else is told of training, since no noise would hide it.

    Attributes:
      lattice: of clients' integers.
      charge: enters a round where it counts as released.
    """

    lattice: Lattice
    charge: Callable[[int], None]

    @property
    def bits(self) -> int:
        return self.lattice.bits

    @property
    def length(self) -> int:
        return self.lattice.dimension

    def told(self, plan: RoundPlan) -> messages.SecureSum:
        lattice, rotation = self.lattice, rotation_seed(plan.seed, plan.round_number)
        noise = {"kind": lattice.noise, "variance": lattice.variance, "scale": lattice.scale, "bits": lattice.bits}
        share = messages.NoiseShare(**noise, rotation=rotation)  # type: ignore[arg-type]
        return messages.SecureSum(clip_norm=lattice.clip_norm, noise=share)

    def rules(self, plan: RoundPlan) -> dict[str, Any]:
        lattice = self.lattice
        sizes = {"clip_norm": lattice.clip_norm, "scale": lattice.scale}
        noise = {"noise": lattice.noise, "variance": lattice.variance}
        return sizes | noise | {"largest": 0, "rotation": rotation_seed(plan.seed, plan.round_number)}

    def aggregate(self, total: Words, clients: int, plan: RoundPlan) -> CohortAggregate:
        unknown, zero = jnp.float32(math.nan), jnp.float32(0)
        return empty_aggregate({})._replace(
            delta=IntegerSum(total, rotation_seed(plan.seed, plan.round_number), clients),
            clients=jnp.float32(clients),
            clipped=unknown,
            update_norm=unknown,
            training=TrainingSums(zero, zero, unknown),
            examples=unknown,
        )


def sum_layout(like: Params, clip_norm: float, training: LocalTraining, length: int) -> SumLayout:
    """Lay out clients' integers: the grid of private sums, and bounds that honest clients do not reach.

    Args:
      like: arrays, or shapes, of an update.
      clip_norm: of an update.
      training: of clients.
      length: target tokens of a sequence.
    """
    steps = float(training.max_batches)
    rows = steps * training.batch_size
    bounds = Told(
        clipped=1.0,
        update_norm=_MOST_NORM * clip_norm,
        examples=rows,
        loss=rows * length * _MOST_LOSS,
        tokens=rows * length,
        gradient_norm=steps * _MOST_GRADIENT,
    )
    step = float(grid_step(jnp.float32(clip_norm), number_of_coordinates(like)))
    return SumLayout(clip_norm, step, bounds)


def fitting(layout: SumLayout, most: int) -> tuple[SumLayout, int]:
    """Make a grid coarser until sums of so many clients fit into 32 bits, and give the bits that they need."""
    while (bits := (2 * layout.largest * most).bit_length()) > MOST_BITS:
        layout = layout._replace(step=2 * layout.step)
    if layout.largest < 1 << 8:
        raise ConfigurationError(
            f"{setting('aggregation')} is secure, which has room for sums of fewer than {most} clients; give a smaller "
            f"{setting('cohort_size')}"
        )
    return layout, max(bits, LEAST_BITS)
