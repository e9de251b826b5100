"""Sums on a grid against Python's integers, which are exact."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.exact_sums import (
    GRID_BITS,
    LEAST_CLIP_NORM,
    SAFETY,
    ExactSum,
    as_float64,
    grid_step,
    on_grid,
    summed,
)
from fedlm.fl_core.rounds.aggregation import AggregationRules, add_aggregates, contribution, empty_aggregate
from fedlm.fl_core.rounds.local_sgd import TrainingSums, global_norm
from fedlm.fl_core.updates.compressors import sum_of_squares

SIZES = [1, 2, 3, 1000, 30_000]


def integers(sums):
    """The exact numbers of a sum of vectors of one array, as Python's."""
    low, high = (np.asarray(part).tolist() for part in sums["x"])
    return [(above << 20) + below for above, below in zip(high, low, strict=True)]


def added(vector, clip_norm):
    rules, delta = AggregationRules("uniform", exact=True), {"x": jnp.asarray(vector, jnp.float32)}
    update = contribution(delta, jnp.ones(()), TrainingSums.zero(), rules, clip_norm=float(clip_norm))
    return update, float(grid_step(jnp.float32(clip_norm), len(vector)))


def vectors(size):
    rng = np.random.default_rng(size)
    yield np.full(size, 1.0)
    yield -np.full(size, 0.1)
    yield np.eye(1, size)[0]
    yield rng.standard_normal(size)
    yield rng.standard_cauchy(size)
    yield rng.standard_normal(size) * 10.0 ** rng.uniform(-20, 15, size)


@pytest.mark.parametrize("clip_norm", [0.3, 2.0**-20 * 1.9999999, 7e8, LEAST_CLIP_NORM])
@pytest.mark.parametrize("size", SIZES)
def test_no_contribution_is_longer_than_the_clip_norm(size, clip_norm):
    """To the last bit: compared as integers, whatever the vector."""
    for vector in vectors(size):
        for scale in (1e-3, 0.9999, 1.0, 1.0001, 1e6):
            length = np.linalg.norm(vector) or 1.0
            update, step = added(vector / length * clip_norm * scale, clip_norm)
            squared = sum(number**2 for number in integers(update.delta))
            # The clip norm is a multiple of a very small power of two, as the step is.
            assert squared <= int(np.float64(np.float32(clip_norm)) / step * 2**20) ** 2 >> 40
            assert math.sqrt(squared) * step >= clip_norm * min(scale, 1) * (1 - 2.0**-11) - 2.0**-11 * clip_norm


@pytest.mark.parametrize("clip_norm", [1.0, 0.3, 1e-9, 3.9999998])
def test_the_grid_is_fine_enough_in_all_coordinates_together(clip_norm):
    for size in (*SIZES, 20_000_000, 10**9):
        step = float(grid_step(jnp.float32(clip_norm), size))
        assert math.frexp(step)[0] == 0.5
        assert clip_norm / 8 < step * math.sqrt(size) * 2**GRID_BITS * 1.001 / 1 <= clip_norm * 1.001


def test_a_norm_of_many_equal_numbers_is_well_within_the_safety_margin():
    """Float sums of numbers one after another stand still at 2^24 of them."""
    for value in (1.0, 0.7):
        found = float(jax.jit(global_norm)({"x": jnp.full(20_000_000, value, jnp.float32)}))
        exact = math.sqrt(20_000_000) * float(np.float32(value))
        assert abs(found / exact - 1) < (1 - SAFETY) / 4


@pytest.mark.parametrize("blocks", [1221, 8000])
def test_a_client_cannot_choose_numbers_whose_squares_get_lost(blocks):
    """Each of them is added to a sum that is too large to change by it."""
    size, small = blocks << 14, np.float32(2.0**-12 * 0.999)

    def values(first, count):
        return jnp.full(count, jnp.where(first == 0, 1.0, small), jnp.float32)

    found = math.sqrt(jax.jit(lambda: sum_of_squares(values, size))())
    exact = math.sqrt(2**14 + (size - 2**14) * float(small) ** 2)
    assert found >= exact * SAFETY * (1 + 2.0**-16)


def test_sums_of_many_lanes_do_not_overflow():
    """Low numbers alone come to more than int32 holds."""
    lanes = 5000
    numbers = [-1, (1 << 20) - 1, -(1 << 29), 12345]
    one = on_grid({"x": jnp.asarray(numbers, jnp.float32)}, jnp.float32(1), "toward_zero")
    each = jax.tree_util.tree_map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), one)
    total = jax.jit(summed)(each)
    assert integers(total) == [lanes * number for number in numbers]
    assert np.all((np.asarray(total["x"].low) >= 0) & (np.asarray(total["x"].low) < 1 << 20))


@pytest.mark.long
def test_sums_are_those_of_integers_in_any_order():
    rng, rules = np.random.default_rng(0), AggregationRules("uniform", exact=True)
    size, clients = 50, 1000
    updates = rng.standard_normal((clients, size)).astype(np.float32)
    updates[:, 0] = 100.0  # all that a client may add lies along one axis
    updates[:, 1:] *= 1e-4

    @jax.jit
    def fold(total, update):
        return add_aggregates(total, contribution({"x": update}, 1.0, TrainingSums.zero(), rules, clip_norm=1.0)), None

    def total_of(rows):
        return jax.lax.scan(fold, empty_aggregate({"x": updates[0]}, exact=True), rows)[0]

    each = jax.vmap(lambda row: contribution({"x": row}, 1.0, TrainingSums.zero(), rules, clip_norm=1.0).delta)
    low, high = (np.asarray(part).astype(object) for part in each(updates)["x"])
    expected = np.sum((high << 20) + low, axis=0)
    halves = add_aggregates(total_of(updates[:500]), total_of(updates[:499:-1]))
    for total in (total_of(updates), total_of(rng.permutation(updates)), halves):
        assert integers(total.delta) == expected.tolist()
        # Else the low numbers of more clients would overflow.
        assert np.all((np.asarray(total.delta["x"].low) >= 0) & (np.asarray(total.delta["x"].low) < 1 << 20))
    with jax.enable_x64(True):
        assert as_float64(total.delta)["x"].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("rounding", "expected"), [("toward_zero", [2, -2, 0, 0, 1 << 30]), ("to_nearest", [3, -3, 0, -1, 1 << 30])]
)
def test_numbers_are_rounded_as_is_said(rounding, expected):
    vector = np.array([2.75, -2.75, 0.4, -0.9, 2.0**30], np.float32) / 8
    assert integers(on_grid({"x": vector}, jnp.float32(1 / 8), rounding)) == expected
    assert isinstance(on_grid(vector, jnp.float32(1 / 8), rounding), ExactSum)


def test_exact_sums_are_of_updates_that_are_bounded():
    with pytest.raises(ConfigurationError, match="all weigh the same"):
        AggregationRules("examples", exact=True)
    rules = AggregationRules("uniform", exact=True)
    with pytest.raises(AssertionError):
        contribution({"x": jnp.ones(2)}, jnp.ones(()), TrainingSums.zero(), rules)
