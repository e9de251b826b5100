"""The bytes of partial sums, of floats and of exact integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.deployment.aggregators.partial_sums import pack_aggregate, unpack_aggregate
from fedlm.fl_core.exact_sums import grid_step, on_grid
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.updates.update_bytes import WireError
from tests.support.exact_totals import exact_total

LIKE = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(5, np.float32)}


def some_sum(exact):
    rng = np.random.default_rng(0)
    delta = jax.tree_util.tree_map(lambda leaf: 0.04 * rng.standard_normal(leaf.shape).astype(np.float32), LIKE)
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


def changed(part, value):
    """An exact sum of which one number was changed on the way."""
    sent = some_sum(True)
    numbers = np.array(getattr(sent.delta["b"], part))
    numbers[-1] = value
    delta = sent.delta | {"b": sent.delta["b"]._replace(**{part: jnp.asarray(numbers)})}
    return pack_aggregate(sent._replace(delta=delta))


@pytest.mark.parametrize("value", [-1, 1 << 20, 2**31 - 1, -(2**31)])
def test_low_numbers_that_no_sum_has_are_refused(value):
    with pytest.raises(WireError, match=rf"low numbers .*{value}.* must lie between 0 and 1048575"):
        unpack_aggregate(changed("low", value), LIKE, True, 2)


@pytest.mark.parametrize("value", [1, -2, 2**31 - 1, -(2**31)])
def test_a_sum_that_is_longer_than_its_updates_together_is_refused(value):
    with pytest.raises(WireError, match="2 clipped updates have 65536 at most"):
        unpack_aggregate(changed("high", value), LIKE, True, 2)


def test_updates_of_the_clip_norm_in_one_direction_are_accepted():
    step = grid_step(jnp.float32(0.124999), 11)
    delta = {"a": np.zeros((3, 2), np.float32), "b": np.eye(1, 5, dtype=np.float32)[0] * np.float32(3 * 0.124999)}
    sent = empty_aggregate(LIKE, True)._replace(delta=on_grid(delta, step, "toward_zero"), clients=jnp.float32(3))
    unpack_aggregate(pack_aggregate(sent), LIKE, True, 3)
    with pytest.raises(WireError, match="2 clipped updates have"):
        unpack_aggregate(pack_aggregate(sent._replace(clients=jnp.float32(2))), LIKE, True, 2)
