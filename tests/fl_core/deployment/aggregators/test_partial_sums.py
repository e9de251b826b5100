"""The bytes of partial sums, of floats and of exact integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.aggregation import empty_aggregate
from fedlm.fl_core.deployment.aggregators.partial_sums import pack_aggregate, unpack_aggregate
from fedlm.fl_core.deployment.protocol.update_bytes import WireError
from tests.support.exact_totals import exact_total

LIKE = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(5, np.float32)}


def some_sum(exact):
    rng = np.random.default_rng(0)
    delta = jax.tree_util.tree_map(lambda leaf: 1e4 * rng.standard_normal(leaf.shape).astype(np.float32), LIKE)
    delta = exact_total(delta, 0.1) if exact else delta
    return empty_aggregate(LIKE, exact)._replace(delta=delta, clients=jnp.float32(3), dropped=jnp.float32(1))


@pytest.mark.parametrize("exact", [False, True])
def test_a_partial_sum_arrives_bit_for_bit(exact):
    sent = some_sum(exact)
    received = unpack_aggregate(pack_aggregate(sent), LIKE, exact, 2)
    for a, b in zip(*map(jax.tree_util.tree_leaves, (sent, received)), strict=True):
        assert np.asarray(a).dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("exact", [False, True])
def test_a_partial_sum_of_another_kind_is_refused(exact):
    with pytest.raises(WireError, match="but that of this model has"):
        unpack_aggregate(pack_aggregate(some_sum(exact)), LIKE, not exact, 2)
    with pytest.raises(WireError, match="holds 2 reports"):
        unpack_aggregate(pack_aggregate(some_sum(exact)), LIKE, exact, 3)
