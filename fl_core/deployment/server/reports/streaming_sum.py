"""Adds reports as they come: each is checked, dequantized, clipped, added and forgotten."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.exact_sums import is_exact, normalized, number_of_coordinates
from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    CohortAggregate,
    contribution,
    empty_aggregate,
)
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.updates.compressors import Buffer, Compressor, Shape, compress_update, decompress_update, shapes_of
from fedlm.fl_core.updates.update_bytes import (
    Part,
    WireError,
    check_update,
    pack_update,
    parts_of,
    squared_norm,
    unpack_tensors,
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
    # what is counted of what one client sent, where it is small and not as it was sent
    bounded: Callable[[Params], Params] | None = None


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
        self._compressor, self._rules, self._bounded = settings.compressor, settings.rules, settings.bounded
        self._clip_norm, self._key = clip_norm, upload_key
        self._like = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), settings.like)
        self.upload_bytes = upload_bytes(self._compressor, self._like)
        # Its arrays are given to the compiled program one by one, so that no two may be the same, and there is only one
        # sum in memory: all of it is zeros.
        self._coordinates = number_of_coordinates(self._like)
        self._parts = parts_of(self._compressor, shapes_of(self._like))
        empty = jax.eval_shape(lambda: empty_aggregate(self._like, self._rules.exact))
        self._delta = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), empty.delta)
        # In float64 the order in which reports come does not show, once the sum is rounded to float32.
        self._counts = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape), empty._replace(delta=()))

    def compile(self) -> None:
        """Compile what adds a report, so that the first one of a run does not wait for it. The sum is used up."""
        # Zeros that nobody writes take no memory.
        message = np.zeros(self.upload_bytes, np.uint8).data
        self._add(0, message, 1, TrainingSums(0.0, 0.0, 0.0))  # type: ignore[arg-type]

    def add(self, report: Report) -> None:
        """Add a report as it was received.

        Raises:
          WireError: it is not an update of this model, or its numbers are not finite. The sum is as before, but counts
            the client as dropped where its numbers were the reason.
        """
        check_update(self._compressor, report.content, self._like)
        content = report.content if self._bounded is None else self._bounded_content(report)
        if not self._add(report.client, memoryview(content), report.num_examples, report.training):
            raise WireError("the update's length, or its loss, is not a finite number")

    def _bounded_content(self, report: Report) -> bytes:
        assert self._bounded is not None
        key, message = jax.random.fold_in(self._key, report.client), np.frombuffer(report.content, np.uint8)
        tensors = unpack_update(self._compressor, jnp.asarray(message), self._like)
        kept = self._bounded(decompress_update(self._compressor, key, tensors, self._like))
        return pack_update(self._compressor, compress_update(self._compressor, key, kept), self._like)

    def _add(self, client: int, message: memoryview, num_examples: int, training: TrainingSums) -> bool:
        # Decompressed twice, once for the norm and once for the sum, an update need never be in memory: that is several
        # times as fast.
        key, squares = jax.random.fold_in(self._key, client), jnp.float32(0.0)
        for part in self._parts:
            kind = _Kind(self._compressor, self._rules, self._coordinates, part.shapes, part.skip)
            squares += _squares(kind, key, part.first, message=_on_device(part, message))
            # Else the parts that wait for their turn would be a whole upload.
            jax.block_until_ready(squares)
        nodes, structure = jax.tree_util.tree_flatten(self._delta, is_leaf=is_exact)
        self._delta = {}
        for part in self._parts:
            there = slice(part.first, part.first + len(part.shapes))
            nodes[there], added = _fold(
                _Kind(self._compressor, self._rules, self._coordinates, part.shapes, part.skip),
                nodes[there],
                key,
                (part.first, part.value),
                message=_on_device(part, message),
                num_examples=jnp.float32(num_examples),
                training=TrainingSums(*map(jnp.float32, training)),
                clip_norm=self._clip_norm,
                norm=jnp.sqrt(squares),
            )
            jax.block_until_ready(nodes[there])  # the message is not copied
        self._delta = jax.tree_util.tree_unflatten(structure, nodes)
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


class _Kind(NamedTuple):
    """What one compiled program is for."""

    compressor: Compressor
    rules: AggregationRules
    coordinates: int  # of the whole update
    shapes: tuple[Shape, ...]  # of the part
    skip: int


def _on_device(part: Part, message: memoryview) -> jax.Array:
    # Where it is aligned as JAX wants it, the message is not copied.
    return jax.device_put(part.content(message), may_alias=True)


@functools.partial(jax.jit, static_argnums=0)
def _squares(kind: _Kind, key: jax.Array, first: jax.Array, *, message: jax.Array) -> jax.Array:
    return squared_norm(kind.compressor, key, message, kind.shapes, skip=kind.skip, first=first)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _fold(
    kind: _Kind,
    totals: list,
    key: jax.Array,
    place: tuple[jax.Array, jax.Array | None],
    *,
    message: jax.Array,
    num_examples: jax.Array,
    training: TrainingSums,
    clip_norm: jax.Array | None,
    norm: jax.Array,
) -> tuple[list, CohortAggregate]:
    """Add a part to the tensors that it is of, from a value of the only one on where there is a second place."""
    first, value = place
    like = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in kind.shapes]
    tensors = unpack_tensors(kind.compressor, message, kind.shapes, kind.skip)
    delta = decompress_update(kind.compressor, key, tensors, like, first=first)
    added = contribution(
        delta, num_examples, training, kind.rules, clip_norm=clip_norm, norm=norm, coordinates=kind.coordinates
    )
    count = None if value is None else kind.shapes[0][0]
    there = jax.tree_util.tree_map(lambda total: _values(total, value, count), totals)
    new = normalized(jax.tree_util.tree_map(jnp.add, there, added.delta))
    totals = jax.tree_util.tree_map(lambda total, values: _with_values(total, value, values), totals, new)
    return totals, added._replace(delta=())


def _values(total: jax.Array, first: jax.Array | None, count: int | None) -> jax.Array:
    return total if first is None else jax.lax.dynamic_slice(total.reshape(-1), (first,), (count,))


def _with_values(total: jax.Array, first: jax.Array | None, values: jax.Array) -> jax.Array:
    if first is None:
        return values
    return jax.lax.dynamic_update_slice(total.reshape(-1), values, (first,)).reshape(total.shape)
