"""Sums over devices, of one process or of several: the same bits, whichever process has which device.

Each device adds up one part of all vectors, and then they exchange the parts: it moves no more than an all-reduce,
whose order of sums depends on what connects the devices. Processes exchange only what their devices have summed up
before, so that what leaves a process does not grow with its devices. Neighbours are added first, two by two, as long as
their number is even; so the sums of a process are sums that one process with all the devices would make too.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.exact_sums import ExactSum, is_exact, normalized, summed
from fedlm.fl_core.processes import lost_processes
from fedlm.fl_core.rounds.aggregation import CohortAggregate, empty_aggregate

_ROWS, _COLUMNS = "rows", "columns"
BY_DEVICE = PartitionSpec((_ROWS, _COLUMNS))
"""Of arrays whose first axis is that of the devices."""


def rows_of_devices(devices: Sequence[jax.Device]) -> Mesh:
    """Arrange devices in rows that sum up before rows exchange their sums.

    A row has as many of a process' devices as the greatest power of two that divides their number; one alone where
    processes have different numbers of devices, or do not have them side by side.
    """
    owners = [device.process_index for device in devices]
    each = len(devices) // len(set(owners))
    side_by_side = owners == [owner for owner in dict.fromkeys(owners) for _ in range(each)]
    return Mesh(np.array(devices).reshape(-1, each & -each if side_by_side else 1), (_ROWS, _COLUMNS))


def connect_devices() -> None:
    """Make the devices of all processes meet, in the groups in which they will sum up."""
    mesh = rows_of_devices(jax.devices())
    by_device = NamedSharding(mesh, BY_DEVICE)
    aggregate = jax.tree_util.tree_map(
        lambda leaf: jax.make_array_from_process_local_data(
            by_device, np.zeros((jax.local_device_count(), *leaf.shape), leaf.dtype)
        ),
        empty_aggregate(np.zeros(1, np.float32)),
    )
    with lost_processes():
        jax.block_until_ready(add_devices(aggregate, mesh))


@functools.partial(jax.jit, static_argnames=("mesh",))
def add_devices(aggregate: CohortAggregate, mesh: Mesh) -> CohortAggregate:
    """Sum up over the first axis, spread `BY_DEVICE` over a mesh of `rows_of_devices`; all devices get the sum."""
    return jax.shard_map(
        functools.partial(_add, mesh), mesh=mesh, in_specs=BY_DEVICE, out_specs=PartitionSpec(), check_vma=False
    )(aggregate)


def _add(mesh: Mesh, aggregate: CohortAggregate) -> CohortAggregate:
    own = jax.tree_util.tree_map(lambda leaf: leaf[0], aggregate)
    if mesh.size == 1:
        return own
    if not any(map(is_exact, jax.tree_util.tree_leaves(own.delta, is_leaf=is_exact))):
        vector, unravel = ravel_pytree(own)
        return unravel(_sum_of_vectors(mesh, vector[None], add_in_pairs)[0])
    low, unravel = ravel_pytree(_part_of_exact(own.delta, "low"))
    high, _ = ravel_pytree(_part_of_exact(own.delta, "high"))
    lows, highs = map(unravel, _sum_of_vectors(mesh, jnp.stack([low, high]), _add_exactly))
    delta = normalized(jax.tree_util.tree_map(ExactSum, lows, highs))
    return _add(mesh, aggregate._replace(delta={}))._replace(delta=delta)


def _part_of_exact(sums: Any, name: str) -> Any:
    return jax.tree_util.tree_map(lambda one: getattr(one, name), sums, is_leaf=is_exact)


def _sum_of_vectors(mesh: Mesh, vectors: jax.Array, add: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Sum up [vectors, length] over all devices: `add` makes [vectors, part] of [devices, vectors, part]."""
    rows, columns = mesh.shape[_ROWS], mesh.shape[_COLUMNS]
    of_row = _sum_of_part(vectors, _COLUMNS, columns, add)
    own = _sum_of_part(of_row, _ROWS, rows, add)
    if rows > 1:
        # Every device sends its part to all rows at once; in a ring, each would wait for the one before it.
        copies = jax.lax.all_to_all(jnp.broadcast_to(own, (rows, *own.shape)), _ROWS, 0, 0)
        of_row = _side_by_side(copies)[:, : of_row.shape[1]]
    if columns == 1:
        return of_row
    return _side_by_side(jax.lax.all_gather(of_row, _COLUMNS))[:, : vectors.shape[1]]


def _sum_of_part(vectors: jax.Array, axis: str, size: int, add: Callable[[jax.Array], jax.Array]) -> jax.Array:
    if size == 1:
        return vectors
    padded = jnp.pad(vectors, ((0, 0), (0, -vectors.shape[1] % size)))
    parts = jnp.swapaxes(padded.reshape(len(vectors), size, -1), 0, 1)
    return add(jax.lax.all_to_all(parts, axis, 0, 0))


def _side_by_side(parts: jax.Array) -> jax.Array:
    """Join [parts, vectors, part] to [vectors, parts x part]."""
    return jnp.swapaxes(parts, 0, 1).reshape(parts.shape[1], -1)


def add_in_pairs(parts: jax.Array) -> jax.Array:
    """Sum up over the first axis: neighbours two by two while their number is even, and what is left in order."""
    while len(parts) % 2 == 0:
        parts = parts[0::2] + parts[1::2]
    return jax.lax.fori_loop(1, len(parts), lambda index, total: total + parts[index], parts[0])


def _add_exactly(parts: jax.Array) -> jax.Array:
    """Sum up int32 [devices, 2, part], low and high numbers, over the first axis."""
    return jnp.stack(summed(normalized(ExactSum(parts[:, 0], parts[:, 1]))))
