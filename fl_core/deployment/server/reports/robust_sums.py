"""Aggregation that a few dishonest clients cannot lead astray: the coordinate-wise median, or the trimmed mean.

Both need all of a round's updates at once (Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal
statistical rates"). They wait, dequantized and clipped, in a file without a name: the disk needs 4 bytes a parameter
for each report of a round, and memory 8 bytes a parameter, however many there are. Neither is a sum, so that no noise
makes it private.
"""

import functools
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum, SumSettings
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.exact_sums import number_of_coordinates, shaped
from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    CohortAggregate,
    contribution,
)
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.updates.compressors import Compressor, decompress_update
from fedlm.fl_core.updates.update_bytes import unpack_update

RobustName = Literal["mean", "median", "trimmed_mean", "secure"]
_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class RobustRule:
    """How updates become one."""

    name: RobustName = "mean"  # sums, plain or secure, need nothing of this module
    trimmed_part: float = 0.1  # of the updates, that `trimmed_mean` leaves out at each end; their number is rounded up

    def __post_init__(self) -> None:
        if self.name not in get_args(RobustName):
            raise ConfigurationError(
                f"{setting('aggregation')} is {self.name!r}, but must be one of {get_args(RobustName)}"
            )
        if not 0 < self.trimmed_part < 0.5:
            raise ConfigurationError(
                f"{setting('trimmed_part')} is {self.trimmed_part}, but must lie between 0 and 0.5"
            )


class RobustSum(StreamingSum):
    """A `StreamingSum` whose mean is a robust one."""

    def __init__(
        self,
        settings: SumSettings,
        upload_key: jax.Array,
        rule: RobustRule,
        *,
        folder: Path,
        most: int,
        clip_norm: float | None = None,
    ):
        """Begin with nothing, and take the disk's room for so many reports at most.

        Raises:
          ConfigurationError: the disk has no room.
        """
        super().__init__(settings, upload_key, clip_norm)
        self._rule, self._rows = rule, 0
        self._columns = number_of_coordinates(self._like)
        leaves, structure = jax.tree_util.tree_flatten(self._like)
        self._shapes = (tuple(leaf.shape for leaf in leaves), structure)
        self._delta = {}
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        try:
            os.posix_fallocate(self._file.fileno(), 0, 4 * self._columns * most)
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: no room for {most} updates of {4 * self._columns} bytes ({error.strerror}), which the "
                f"aggregation {rule.name} keeps until a round's end"
            ) from error

    def _add(self, client: int, message: memoryview, num_examples: int, training: TrainingSums) -> bool:
        delta, added = _contribution(
            self._compressor,
            self._rules,
            self._shapes,
            jax.random.fold_in(self._key, client),
            message=jax.device_put(np.frombuffer(message, np.uint8), may_alias=True),
            num_examples=jnp.float32(num_examples),
            training=TrainingSums(*map(jnp.float32, training)),
            clip_norm=self._clip_norm,
        )
        if not added.dropped:
            offset = 4 * self._columns * self._rows
            for leaf in delta:
                values = np.ascontiguousarray(leaf, np.float32).reshape(-1)
                os.pwrite(self._file.fileno(), values.view(np.uint8).data, offset)
                offset += values.nbytes
            self._rows += 1
        return self._count(added)

    def finish(self) -> CohortAggregate:
        """Let the weight times the robust mean take the place of the sum. Takes a while."""
        rows, columns = self._rows, self._columns
        self._file.flush()
        found = np.zeros(columns, np.float32)
        if rows:
            updates = np.memmap(self._file, np.float32, "r", shape=(rows, columns))
            step = max(1, _BLOCK_BYTES // (4 * rows))
            for start in range(0, columns, step):
                found[start : start + step] = robust_mean(updates[:, start : start + step], self._rule)
        self._file.close()
        return super().finish()._replace(delta=shaped(found * np.float32(rows), self._like))


def robust_mean(updates: np.ndarray, rule: RobustRule) -> np.ndarray:
    """Combine updates, each coordinate by itself.

    Args:
      updates: float32 [clients, coordinates], at least one client.

    Returns:
      float32 [coordinates].
    """
    ordered = np.sort(np.ascontiguousarray(updates.T), axis=1)
    clients = ordered.shape[1]
    middle = (clients - 1) // 2
    cut = middle if rule.name == "median" else min(middle, math.ceil(rule.trimmed_part * clients))
    return ordered[:, cut : clients - cut].mean(axis=1, dtype=np.float32)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _contribution(
    compressor: Compressor,
    rules: AggregationRules,
    shapes: Any,
    key: jax.Array,
    *,
    message: jax.Array,
    num_examples: jax.Array,
    training: TrainingSums,
    clip_norm: jax.Array | None,
) -> tuple[list[jax.Array], CohortAggregate]:
    """Make the leaves of a client's update, clipped, and what it adds to the sums beside it."""
    leaves, structure = shapes
    like = jax.tree_util.tree_unflatten(structure, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in leaves])
    delta = decompress_update(compressor, key, unpack_update(compressor, message, like), like)
    added = contribution(delta, num_examples, training, rules, clip_norm=clip_norm)
    return jax.tree_util.tree_leaves(added.delta), added._replace(delta=())
