"""The bytes of an aggregate, from the process that added it up to the one that merges it.

Every number as little-endian float32, in the order of `jax.tree_util.tree_leaves`; both sides know the shapes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.aggregation import CohortAggregate, empty_aggregate
from fedlm.fl_core.deployment.protocol.update_bytes import WireError
from fedlm.models.base import Params


def pack_aggregate(aggregate: CohortAggregate) -> bytes:
    """Serialize an aggregate."""
    return b"".join(np.asarray(leaf, "<f4").tobytes() for leaf in jax.tree_util.tree_leaves(aggregate))


def unpack_aggregate(content: bytes, like: Params, reports: int) -> CohortAggregate:
    """Read what `pack_aggregate` wrote.

    Raises:
      WireError: it is of another model, holds a number that is not finite, or another count of reports.
    """
    empty = jax.eval_shape(empty_aggregate, jax.tree_util.tree_map(_float32, like))
    leaves, structure = jax.tree_util.tree_flatten(empty)
    expected = 4 * sum(leaf.size for leaf in leaves)
    if len(content) != expected:
        raise WireError(f"a partial sum has {len(content)} bytes, but that of this model has {expected}")
    values, arrays, offset = np.frombuffer(content, "<f4"), [], 0
    if not np.isfinite(values).all():
        raise WireError("a partial sum holds a number that is not finite")
    for leaf in leaves:
        arrays.append(jnp.asarray(values[offset : offset + leaf.size].reshape(leaf.shape)))
        offset += leaf.size
    aggregate = jax.tree_util.tree_unflatten(structure, arrays)
    found = round(float(aggregate.clients - aggregate.dropped))
    if found != reports:
        raise WireError(f"a partial sum holds {found} reports, but {reports} were expected")
    return aggregate


def _float32(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, jnp.float32)
