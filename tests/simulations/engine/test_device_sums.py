"""Sums over devices have the same bits however the devices are arranged, and are those of plain loops."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from fedlm.fl_core.exact_sums import ExactSum
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.simulations.engine.device_sums import BY_DEVICE, add_devices, add_in_pairs, rows_of_devices

SIZES = {"first": (3, 5), "second": (7,)}
ARRANGEMENTS = [(1, 4), (2, 2), (4, 1)]


@dataclass(frozen=True)
class FakeDevice:
    process_index: int
    name: int


@pytest.mark.parametrize(
    ("owners", "shape"),
    [
        ([0], (1, 1)),
        ([0, 0, 0, 0], (1, 4)),
        ([0, 0, 1, 1], (2, 2)),
        ([0, 1, 2, 3], (4, 1)),
        ([0] * 6 + [1] * 6, (6, 2)),
        ([0] * 12 + [1] * 12 + [2] * 12, (9, 4)),
        ([0, 0, 1], (3, 1)),
        ([0, 1, 0, 1], (4, 1)),
    ],
)
def test_a_row_is_of_one_process(owners, shape):
    devices = [FakeDevice(owner, name) for name, owner in enumerate(owners)]
    mesh = np.array(rows_of_devices(devices).devices)
    assert mesh.shape == shape
    assert [device.name for device in mesh.flat] == list(range(len(owners)))
    assert all(len({device.process_index for device in row}) == 1 for row in mesh)


def spread(rows, columns, aggregate):
    mesh = Mesh(np.array(jax.devices()[: rows * columns]).reshape(rows, columns), ("rows", "columns"))
    return add_devices(jax.device_put(aggregate, NamedSharding(mesh, BY_DEVICE)), mesh)


def aggregates(devices, exact):
    """What each device has, its first axis that of the devices."""
    rng = np.random.default_rng(4)
    like = {name: jnp.zeros(shape) for name, shape in SIZES.items()}

    def drawn(leaf):
        values = rng.normal(size=(devices, *leaf.shape)) * 10.0 ** rng.integers(-3, 4, (devices, *leaf.shape))
        return jnp.asarray(values, jnp.float32)

    aggregate = jax.tree_util.tree_map(drawn, empty_aggregate(like))
    if not exact:
        return aggregate
    delta = {
        name: ExactSum(
            jnp.asarray(rng.integers(0, 1 << 20, (devices, *shape)), jnp.int32),
            jnp.asarray(rng.integers(-(1 << 20), 1 << 20, (devices, *shape)), jnp.int32),
        )
        for name, shape in SIZES.items()
    }
    return aggregate._replace(delta=delta)


@pytest.mark.long
@pytest.mark.parametrize("exact", [False, True])
def test_every_arrangement_gives_the_same_bits(exact):
    given = aggregates(4, exact)
    sums = [jax.tree_util.tree_leaves(spread(*shape, given)) for shape in ARRANGEMENTS]
    for other in sums[1:]:
        for a, b in zip(sums[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def in_pairs(values):
    if len(values) % 2 == 0:
        return in_pairs(values[0::2] + values[1::2])
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


@pytest.mark.parametrize("devices", [3, 4])
def test_numbers_are_added_in_pairs(devices):
    given = aggregates(devices, exact=False)
    for found, each in zip(*map(jax.tree_util.tree_leaves, (spread(devices, 1, given), given)), strict=True):
        np.testing.assert_array_equal(found, in_pairs(np.asarray(each)))


@pytest.mark.parametrize("devices", [1, 3])
def test_integers_are_added_exactly_and_carried(devices):
    given = aggregates(devices, exact=True)
    found = spread(devices, 1, given)
    for name, each in given.delta.items():
        values = np.asarray(each.high, np.int64) * (1 << 20) + np.asarray(each.low)
        low, high = (np.asarray(part, np.int64) for part in found.delta[name])
        np.testing.assert_array_equal(high * (1 << 20) + low, values.sum(axis=0))
        assert low.min() >= 0
        assert low.max() < 1 << 20
    np.testing.assert_array_equal(found.weight, in_pairs(np.asarray(given.weight)))


@pytest.mark.parametrize(("rows", "columns"), [(6, 2), (3, 4), (2, 6), (12, 1)])
def test_sums_of_rows_are_those_of_all_where_rows_are_of_a_power_of_two(rows, columns):
    values = jnp.asarray(np.random.default_rng(1).normal(size=(12, 50)) * 1e3, jnp.float32)
    of_rows = jnp.stack([add_in_pairs(row) for row in values.reshape(rows, columns, 50)])
    same = bool((add_in_pairs(of_rows) == add_in_pairs(values)).all())
    assert same == (columns in (1, 2, 4))


def test_what_leaves_a_device_for_another_row_does_not_grow_with_the_columns():
    """Counted in the program: elements of each exchange over rows."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("rows", "columns"))
    text = add_devices.lower(aggregates(4, exact=False), mesh).as_text()
    vector = sum(leaf.size // 4 for leaf in jax.tree_util.tree_leaves(aggregates(4, exact=False)))
    exchanged = [line for line in text.splitlines() if "stablehlo.all_to_all" in line and "[0, 2], [1, 3]" in line]
    assert len(exchanged) == 2, text
    quarter = (((vector + 1) // 2) + 1) // 2
    assert all(f"tensor<2x1x{quarter}xf32>" in line for line in exchanged), exchanged
