"""Several processes that run one program together, joined by `jax.distributed`: what they tell each other.

Every process calls these functions at the same place of the program. Each exchange is a small program over all
devices, so that nothing but JAX is needed; in a single process there is none.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.errors import ConfigurationError, ProcessLostError, UserError

_Result = TypeVar("_Result")
_AXIS = "devices"
_JAX_STATUS = "(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED): "


def is_first() -> bool:
    """Say whether this is the process that writes files and speaks to the user: process 0, or the only one."""
    return jax.process_index() == 0


def together(step: Callable[[], _Result]) -> _Result:
    """Take a step in every process that may fail in some of them; then it fails in all: raises UserError where the step
    raised it here, or in another process."""
    result, error = None, None
    try:
        result = step()
    except UserError as raised:
        error = raised
    messages = gather(error and error.args[0])
    if error is not None:
        raise error
    for process, message in enumerate(messages):
        if message is not None:
            raise ConfigurationError(f"process {process} ended: {message}")
    return result  # type: ignore[return-value]


def gather(value: Any) -> list[Any]:
    """Tell all processes a small JSON-able value of each; returns those of all, in their order."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    owners = [device.process_index for device in jax.devices()]
    firsts = [owners.index(process) for process in range(jax.process_count())]
    lengths = gather_by_device(np.full((jax.local_device_count(), 1), len(text), np.int32))[firsts, 0]
    padded = np.zeros((jax.local_device_count(), lengths.max()), np.uint8)
    padded[0, : len(text)] = text
    texts = gather_by_device(padded)[firsts]
    return [json.loads(row[:length].tobytes()) for row, length in zip(texts, lengths, strict=True)]


def gather_by_device(local: np.ndarray) -> np.ndarray:
    """Tell all processes what each device has: from [devices of this process, ...] to [devices of all processes, ...],
    in the order of `jax.devices()`."""
    if jax.process_count() == 1:
        return local
    with lost_processes():
        return np.asarray(_replicated(jax.make_array_from_process_local_data(_by_device(), local)))


def gather_rows(rows: np.ndarray) -> np.ndarray:
    """Put together the rows of batches that are spread over all devices: from [batches, rows of this process], as
    `own_rows` gives them, to [batches, rows of all processes], in the order of the batches."""
    if jax.process_count() == 1:
        return rows
    by_device = np.moveaxis(rows.reshape(len(rows), jax.local_device_count(), -1), 1, 0)
    return np.moveaxis(gather_by_device(np.ascontiguousarray(by_device)), 0, 1).reshape(len(rows), -1)


def own_rows(tree: Any) -> Any:
    """Fetch of arrays that are spread by rows over all devices those on the devices of this process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)

    def fetch(array: jax.Array) -> np.ndarray:
        shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start)
        return np.concatenate([np.asarray(shard.data) for shard in shards])

    return jax.tree_util.tree_map(fetch, tree)


def from_first(tree: Any) -> Any:
    """Put the arrays of the first process on all devices of all processes, bit for bit; the trees of other processes
    give the shapes and types only."""
    if jax.process_count() == 1:
        with jax.enable_x64(True):
            return jax.device_put(tree, on_all_devices())
    return jax.tree_util.tree_map(_leaf_from_first, tree)


def _leaf_from_first(leaf: Any) -> jax.Array:
    whole = np.asarray(leaf)
    # Integers, since a sum of floats with zeros would lose the sign of a negative zero.
    bits = np.zeros((jax.local_device_count(), *whole.shape), f"u{whole.itemsize}")
    if is_first():
        bits[0] = whole.view(bits.dtype)
    # Without 64-bit types JAX would round float64 arrays, such as those of noise.
    with lost_processes(), jax.enable_x64(True) if whole.itemsize == 8 else nullcontext():
        spread = jax.make_array_from_process_local_data(_by_device(), bits)
        return jax.block_until_ready(_sum_of_bits(spread, whole.dtype.name))


@contextmanager
def lost_processes() -> Iterator[None]:
    """Wait inside for other processes; says so where one of them is gone. Raises ProcessLostError where the devices of
    the other processes cannot be reached any more. What this process lacks memory for is not of the others."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if jax.process_count() == 1 or not _of_an_exchange(error):
            raise
        raise ProcessLostError(
            f"the exchange with the other processes failed ({str(error).splitlines()[0][:200]}); most likely one of "
            "them ended, see what it printed. The same commands go on from the last checkpoint"
        ) from error


def _of_an_exchange(error: Exception) -> bool:
    """Say whether JAX reports that an exchange failed: with a status as a ValueError too, where a program starts."""
    return bool(re.match(_JAX_STATUS, str(error))) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error)
    )


@functools.lru_cache(maxsize=1)
def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), _AXIS)


def on_all_devices() -> NamedSharding:
    """Say where arrays lie that `from_first` has put on all devices of all processes."""
    return NamedSharding(_mesh(), PartitionSpec())


def _by_device() -> NamedSharding:
    return NamedSharding(_mesh(), PartitionSpec(_AXIS))


@jax.jit
def _replicated(array: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(array, on_all_devices())


@functools.partial(jax.jit, static_argnums=1)
def _sum_of_bits(bits: jax.Array, dtype: str) -> jax.Array:
    total = jnp.sum(bits, axis=0, dtype=bits.dtype)
    whole = jax.lax.bitcast_convert_type(total, jnp.dtype(dtype))
    return jax.lax.with_sharding_constraint(whole, on_all_devices())
