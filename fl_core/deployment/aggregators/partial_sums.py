"""The bytes of an aggregate, from the process that added it up to the one that merges it.

Every number little-endian, as float32, or int32 in sums that are exact, in the order of `jax.tree_util.tree_leaves`;
both sides know the shapes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedlm.fl_core.deployment.aggregators.masked_part import MaskedPart
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.exact_sums import like_of, why_impossible
from fedlm.fl_core.rounds.aggregation import CohortAggregate, empty_aggregate
from fedlm.fl_core.updates.update_bytes import WireError
from fedlm.models.base import Params


def pack_sum(total: StreamingSum) -> bytes:
    """Serialize the sum of reports, which nothing is added to any more."""
    return total.packed() if isinstance(total, MaskedPart) else pack_aggregate(total.finish())


def pack_aggregate(aggregate: CohortAggregate) -> bytes:
    """Serialize an aggregate."""
    leaves = map(np.asarray, jax.tree_util.tree_leaves(aggregate))
    return b"".join(leaf.astype(leaf.dtype.newbyteorder("<")).tobytes() for leaf in leaves)


def unpack_aggregate(content: bytes, like: Params, exact: bool, reports: int) -> CohortAggregate:
    """Read what `pack_aggregate` wrote.

    Args:
      content: the bytes.
      like: arrays, or shapes, of an update's structure.
      exact: whether it is a sum of integers.
      reports: how many it must be of.

    Raises:
      WireError: it is of another model, holds a number that is not finite, or that no sum of clipped updates has, or
        another count of reports.
    """
    empty = jax.eval_shape(lambda: empty_aggregate(like_of(like), exact))
    leaves, structure = jax.tree_util.tree_flatten(empty)
    expected = 4 * sum(leaf.size for leaf in leaves)
    if len(content) != expected:
        raise WireError(f"a partial sum has {len(content)} bytes, but that of this model has {expected}")
    arrays, offset = [], 0
    for leaf in leaves:
        values = np.frombuffer(content, leaf.dtype.newbyteorder("<"), leaf.size, offset)
        if not np.isfinite(values).all():
            raise WireError("a partial sum holds a number that is not finite")
        arrays.append(jnp.asarray(values.reshape(leaf.shape), leaf.dtype))
        offset += values.nbytes
    aggregate = jax.tree_util.tree_unflatten(structure, arrays)
    found = round(float(aggregate.clients - aggregate.dropped))
    if found != reports:
        raise WireError(f"a partial sum holds {found} reports, but {reports} were expected")
    wrong = why_impossible(aggregate.delta, reports) if exact else None
    if wrong:
        raise WireError(f"a partial sum holds {wrong}; is it of another version, or another clip norm?")
    return aggregate
