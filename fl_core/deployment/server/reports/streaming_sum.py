"""Adds reports as they come: each is checked, dequantized, clipped, added and forgotten."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.exact_sums import like_of, normalized
from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    CohortAggregate,
    contribution,
    empty_aggregate,
)
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.updates.compressors import Buffer, Compressor, decompress_update
from fedlm.fl_core.updates.update_bytes import (
    WireError,
    check_update,
    squared_norm,
    unpack_update,
    upload_bytes,
)
from fedlm.models.base import Params


class Report(NamedTuple):
    """A client's report, whole but not trusted."""

    client: int
    content: Buffer
    num_examples: int  # how many examples the client says that it trains on
    training: TrainingSums  # what it says of its training


class SumSettings(NamedTuple):
    """How the reports of a run are read and added up."""

    like: Params  # arrays, or shapes, of the model's structure
    compressor: Compressor
    rules: AggregationRules  # how they are screened and weighed


class StreamingSum:
    """The sum of a round's reports; holds one model's worth of numbers however many there are. Not thread-safe.

    Attributes:
      upload_bytes: of a report.
      told: what clients need to know to mask their reports; None where these are in the clear.
    """

    upload_bytes: int
    told: messages.SecureSum | None = None

    def __init__(self, settings: SumSettings, upload_key: jax.Array, clip_norm: float | None = None):
        """Begin with nothing.

        Args:
          settings: of the run.
          upload_key: of the round; see `fedlm.fl_core.rounds.round_loop.RoundPlan.upload_key`.
          clip_norm: of this round; None leaves norms alone.
        """
        self._compressor, self._rules = settings.compressor, settings.rules
        self._clip_norm, self._key = clip_norm, upload_key
        self._like = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), settings.like)
        self.upload_bytes = upload_bytes(self._compressor, self._like)
        # Its arrays are given to the compiled program one by one, so that no two may be the same, and there is only one
        # sum in memory: all of it is zeros.
        empty = jax.eval_shape(lambda: empty_aggregate(self._like, self._rules.exact))
        self._delta = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), empty.delta)
        # In float64 the order in which reports come does not show, once the sum is rounded to float32.
        self._counts = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape), empty._replace(delta=()))

    def compile(self) -> None:
        """Compile what adds a report, so that the first one of a run does not wait for it. The sum is used up."""
        message = jnp.zeros(self.upload_bytes, jnp.uint8)
        self._add(0, message, 1, TrainingSums(0.0, 0.0, 0.0))  # type: ignore[arg-type]

    def add(self, report: Report) -> None:
        """Add a report as it was received.

        Raises:
          WireError: it is not an update of this model, or its numbers are not finite. The sum is as before, but counts
            the client as dropped where its numbers were the reason.
        """
        check_update(self._compressor, report.content, self._like)
        # Where it is aligned as JAX wants it, the message is not copied; it is not looked at any more below.
        message = jax.device_put(np.frombuffer(report.content, np.uint8), may_alias=True)
        if not self._add(report.client, message, report.num_examples, report.training):
            raise WireError("the update's length, or its loss, is not a finite number")

    def _add(self, client: int, message: jax.Array, num_examples: int, training: TrainingSums) -> bool:
        self._delta, added = _fold(
            self._compressor,
            self._rules,
            self._delta,
            jax.random.fold_in(self._key, client),
            message=message,
            num_examples=jnp.float32(num_examples),
            training=TrainingSums(*map(jnp.float32, training)),
            clip_norm=self._clip_norm,
        )
        jax.block_until_ready(self._delta)  # the message is not copied
        return self._count(added)

    def _count(self, added: CohortAggregate) -> bool:
        """Add what a report adds beside its update, and say whether it was accepted."""
        self._counts = jax.tree_util.tree_map(np.add, self._counts, jax.device_get(added))
        return not added.dropped

    def finish(self) -> CohortAggregate:
        """Give the sum of all that was added; nothing is added after this."""
        return jax.tree_util.tree_map(jnp.float32, self._counts)._replace(delta=self._delta)

    def add_unusable(self) -> None:
        """Count a client whose training gave no finite update."""
        counted = self._counts
        self._counts = counted._replace(clients=counted.clients + 1, dropped=counted.dropped + 1)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _fold(
    compressor: Compressor,
    rules: AggregationRules,
    total: Params,
    key: jax.Array,
    *,
    message: jax.Array,
    num_examples: jax.Array,
    training: TrainingSums,
    clip_norm: jax.Array | None,
) -> tuple[Params, CohortAggregate]:
    # Decompressed twice, once for the norm and once for the sum, an update need never be in memory: that is several
    # times as fast.
    like = like_of(total)
    norm = jnp.sqrt(squared_norm(compressor, key, message, like))
    delta = decompress_update(compressor, key, unpack_update(compressor, message, like), like)
    added = contribution(delta, num_examples, training, rules, clip_norm=clip_norm, norm=norm)
    total = normalized(jax.tree_util.tree_map(jnp.add, total, added.delta))
    return total, added._replace(delta=())
