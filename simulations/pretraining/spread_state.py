"""How the state of a training lies on the devices of a mesh."""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.exact_sums import is_exact
from fedlm.models.base import Params
from fedlm.simulations.pretraining.microbatches import BatchTotals, same_for_all

Sharding = Literal["data", "full"]
AXIS = "devices"


class Spread:
    """Says where arrays lie.

    Attributes:
      mesh: of the devices.
      devices: how many there are, of all processes together.
      full: whether the state is spread over the devices; else each has the whole.
      everywhere: the sharding of what every device has.
      by_device: that of rows of which each device has its own.
      params: the specifications of the parameters.
      of_params: their shardings.
    """

    def __init__(self, devices: Sequence[jax.Device], sharding: Sharding, shapes: Params):
        """Spread parameters of these shapes."""
        self.mesh, self.devices, self.full = Mesh(np.array(devices), AXIS), len(devices), sharding == "full"
        self.everywhere = NamedSharding(self.mesh, PartitionSpec())
        self.by_device = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.params = self.specs(shapes)
        self.of_params = self.shardings(self.params)

    def specs(self, tree: Any) -> Any:
        """Spread the longest axis of each array that the devices divide, where the state is spread at all."""
        return jax.tree_util.tree_map(self._spec, tree)

    def _spec(self, leaf: jax.ShapeDtypeStruct | np.ndarray) -> PartitionSpec:
        divisible = [size if size % self.devices == 0 else 0 for size in leaf.shape]
        if not self.full or not any(divisible):
            return PartitionSpec()
        axis = int(np.argmax(divisible))
        return PartitionSpec(*[None] * axis, AXIS)

    def totals(self) -> BatchTotals:
        """Specify the totals of a batch: of each device by itself, or spread as the parameters are."""
        if not self.full:
            by_device = PartitionSpec(AXIS)
            return same_for_all(jax.tree_util.tree_map(lambda _: by_device, self.params, is_leaf=_is_spec), by_device)
        gradient = jax.tree_util.tree_map(lambda spec: PartitionSpec(None, *spec), self.params, is_leaf=_is_spec)
        return same_for_all(gradient, PartitionSpec())

    def shardings(self, specs: Any) -> Any:
        """Make shardings of specifications."""
        return jax.tree_util.tree_map(lambda spec: NamedSharding(self.mesh, spec), specs, is_leaf=_is_spec)

    def place(self, tree: Any) -> Any:
        """Spread arrays that every process has whole."""

        def spread(leaf: Any) -> jax.Array:
            whole = np.asarray(leaf)
            # No device is given more than it keeps.
            sharding = NamedSharding(self.mesh, self._spec(whole))
            return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

        with jax.enable_x64(True):
            return jax.tree_util.tree_map(spread, tree)

    def rows(self, array: np.ndarray) -> jax.Array:
        """Give each device its rows, of which this process has those of its devices."""
        return jax.make_array_from_process_local_data(self.by_device, array)

    def gathered(self, tree: Params, specs: Any) -> Params:
        """Gather, on a device, arrays of which it has a part."""
        return jax.tree_util.tree_map(_gathered, tree, specs)

    def of_all_devices(self, found: BatchTotals) -> BatchTotals:
        """Where totals are spread, add up those of a microbatch of each device; a device gets the part that it keeps.

        Integers are added, below 2^20 each of those that are carried, so that there may be 2^11 devices.
        """
        if not self.full:
            return found
        gradient = jax.tree_util.tree_map(_scattered, found.gradient, self.params, is_leaf=is_exact)
        return jax.lax.psum(found._replace(gradient=()), AXIS)._replace(gradient=gradient)


def _gathered(part: jax.Array, spec: PartitionSpec) -> jax.Array:
    return part if AXIS not in spec else jax.lax.all_gather(part, AXIS, axis=spec.index(AXIS), tiled=True)


def _scattered(part: Any, spec: PartitionSpec) -> Any:
    if AXIS not in spec:
        return jax.lax.psum(part, AXIS)
    axis = spec.index(AXIS)
    return jax.tree_util.tree_map(
        lambda array: jax.lax.psum_scatter(array, AXIS, scatter_dimension=axis, tiled=True), part
    )


def _is_spec(value: Any) -> bool:
    return isinstance(value, PartitionSpec)


def shape_of(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Make the shape of an array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def shapes_on(shapes: Any, shardings: Any) -> Any:
    """Say of shapes how their arrays are spread; one sharding may be that of a whole subtree."""
    return jax.tree_util.tree_map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        jax.tree.broadcast(shardings, shapes),
    )
