"""Steps of central training on the devices of a mesh: sums over a logical batch, noise, optimizer.

A logical batch comes in chunks of one shape, each of these in microbatches, so that nothing is compiled again and a
batch may be larger than memory. Every microbatch adds its gradients to a running sum. With privacy those are clipped,
and a microbatch's sum is rounded to the nearest integers of a grid (`fl_core.exact_sums`), so that it does not matter
in what order sums are added, or where; noise is added once, to the sum of the whole batch.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.exact_sums import grid_step, is_exact, normalized, number_of_coordinates, summed
from fedlm.fl_core.privacy.noise.noise_source import Draw, lower_draw, noise_from
from fedlm.fl_core.privacy.noise.noised_sums import noised_mean
from fedlm.fl_core.rounds.local_sgd import global_norm
from fedlm.models.base import Model, Params, given_frozen
from fedlm.simulations.pretraining.microbatches import (
    BatchTotals,
    StepRules,
    empty_totals,
    microbatch_sums,
    same_for_all,
)

Sharding = Literal["data", "full"]
AXIS = "devices"
MICROBATCHES = 8
"""Microbatches of each device in a chunk."""


class TrainState(NamedTuple):
    """What a step changes."""

    params: Params  # of the model, float32
    optimizer: Any
    noise: Any = ()  # of the noise mechanism, which may have arrays of float64


class StepReport(NamedTuple):
    """What is known after a step; not private."""

    totals: BatchTotals  # of the whole batch, without the gradient
    gradient_norm: jax.Array  # of the mean gradient before noise
    noise_norm: jax.Array  # of the noise in the mean gradient
    finite: jax.Array


class LoweredStep(NamedTuple):
    """The programs of a step, lowered and not yet compiled, and the shapes of what is kept between them.

    Attributes:
      programs: by name, as a step runs them: `chunk` for every chunk; with privacy `noise` and `release`, once; and
        `update`, once.
      state: with shardings, as are the next two.
      sums: the gradient of `BatchTotals`.
      noise: of a step, float64; empty without privacy.
      frozen: parameters that are not trained, with shardings; empty where all are.
    """

    programs: dict[str, jax.stages.Lowered]
    state: TrainState
    sums: Params
    noise: Params
    frozen: Params


class _Released(NamedTuple):
    mean: Params
    noise_norm: jax.Array  # of the noise on it
    norm: jax.Array  # of what the noise was added to


class Trainer:
    """Steps of one model on one mesh.

    Attributes:
      devices: how many there are, of all processes together.
      batch_size: what sums are divided by, the units of a batch on average.
      chunk_units: units of a chunk, on all devices of all processes together.
    """

    def __init__(
        self,
        model: Model,
        optimizer: optax.GradientTransformation,
        rules: StepRules,
        sharding: Sharding,
        *,
        devices: Sequence[jax.Device] | None = None,
        frozen: Params = (),
    ):
        """Compile nothing yet.

        Args:
          sharding: `data`: every device has the whole state. `full`: the state, the noise and the sums are spread over
            the devices; the parameters of a chunk are gathered, and each microbatch's sums scattered.
          devices: to use; those of all processes where None.
          frozen: shapes of the parameters that the model needs and that are not trained, see
            `fedlm.models.base.given_frozen`. With `full` they are spread, and gathered for a chunk, too.
        """
        devices = jax.devices() if devices is None else devices
        self._model, self._optimizer, self._rules, self._sharding = model, optimizer, rules, sharding
        self._mesh = Mesh(np.array(devices), AXIS)
        self.devices, self.batch_size = len(devices), rules.batch_size
        self.chunk_units = self.devices * MICROBATCHES * rules.microbatch_size
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        self._param_specs = jax.tree_util.tree_map(self._spec, shapes)
        self._frozen_specs, self._frozen_shapes = jax.tree_util.tree_map(self._spec, frozen), frozen
        self._frozen: Params = ()
        state_shapes = jax.eval_shape(lambda params: TrainState(params, optimizer.init(params)), shapes)
        self._state_shardings = self._shardings(jax.tree_util.tree_map(self._spec, state_shapes))
        self._shapes, self._state_shapes = shapes, state_shapes
        self._grid_step = float(grid_step(np.float32(1.0), number_of_coordinates(shapes)))
        totals = self._shardings(self._totals_specs())
        self._zero = jax.jit(self._empty_totals, out_shardings=totals)
        self._add = jax.jit(self._add_chunk, donate_argnums=1, out_shardings=totals)
        replicated = NamedSharding(self._mesh, PartitionSpec())
        self._step = jax.jit(
            self._apply if rules.clipping is None else self._apply_released,
            donate_argnums=0,
            out_shardings=(self._state_shardings, replicated),
        )
        self._release = jax.jit(
            self._noised,
            out_shardings=_Released(*map(self._shardings, (self._param_specs, PartitionSpec(), PartitionSpec()))),
        )
        self._replicate = jax.jit(lambda state: state, out_shardings=replicated)

    def fresh(self, params: Params) -> TrainState:
        """Make the state before the first step."""
        return jax.device_get(jax.jit(lambda params: TrainState(params, self._optimizer.init(params)))(params))

    def place(self, state: TrainState) -> TrainState:
        """Spread a state that every device of all processes has whole as this trainer keeps it."""
        return self._placed(state)

    def _placed(self, tree: Any) -> Any:
        def spread(leaf: Any) -> jax.Array:
            whole = np.asarray(leaf)
            # No device is given more than it keeps.
            sharding = NamedSharding(self._mesh, self._spec(whole))
            return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

        with jax.enable_x64(True):
            return jax.tree_util.tree_map(spread, tree)

    def take_frozen(self, frozen: Params) -> None:
        """Spread the parameters that are not trained, which every process has whole, for all steps to come."""
        self._frozen = self._placed(frozen)

    def draw_noise(self, secret: bytes) -> Draw:
        """Make the noise of a secret, in the shapes of the model's parameters, spread as this trainer keeps them."""
        return noise_from(secret, self._shapes, self._shardings(self._param_specs))

    def whole(self, state: TrainState) -> TrainState:
        """Fetch a state. Returns NumPy arrays, in every process."""
        with jax.enable_x64(True):
            # One array after another: together they may be larger than a device's memory.
            return jax.tree_util.tree_map(lambda leaf: np.asarray(self._replicate(leaf)), state)

    def whole_params(self, state: TrainState) -> Params:
        """Put the parameters on every device, to score them."""
        return self._replicate(state.params)

    def whole_frozen(self) -> Params:
        """Put the parameters that are not trained on every device."""
        return self._replicate(self._frozen)

    def zero(self) -> BatchTotals:
        """Make the totals of no unit."""
        return self._zero()

    def add(self, params: Params, totals: BatchTotals, chunk: dict[str, np.ndarray]) -> BatchTotals:
        """Add the units of a chunk to the totals, which are not to be used again. A chunk has arrays [units of this
        process, K, ...]: `weight` and the fields of the model's batch."""
        rows = NamedSharding(self._mesh, PartitionSpec(AXIS))
        # Neighbours go to different devices, so that a chunk that is not full keeps all of them busy; clipped gradients
        # by microbatches, so that the same units are in one on any number of devices.
        local = self.devices // jax.process_count()
        together = 1 if self._rules.clipping is None else self._rules.microbatch_size
        dealt = {name: _dealt(array, local, together) for name, array in chunk.items()}
        arrays = {name: jax.make_array_from_process_local_data(rows, array) for name, array in dealt.items()}
        totals = self._add(params, totals, arrays, self._frozen)
        if self._sharding == "full" and jax.default_backend() == "cpu":
            # CPU devices share threads: exchanges of two programs at once could wait for each other for ever.
            jax.block_until_ready(totals)
        return totals

    def step(self, state: TrainState, totals: BatchTotals, noise: Params | None) -> tuple[TrainState, StepReport]:
        """Take a step with the sums of a whole logical batch; the state is not to be used again, and that of the noise
        stays as it is. The noise, float64 in units of one draw, is for this step alone, and None without privacy."""
        if self.devices > 1 and jax.default_backend() == "cpu":
            jax.block_until_ready((totals, noise))
        released: tuple[_Released, ...] = ()
        if self._rules.clipping is not None:
            noise = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape), self._shapes) if noise is None else noise
            with jax.enable_x64(True):
                released = (self._release(totals.gradient, noise),)
            totals = totals._replace(gradient=())
        after, report = self._step(state._replace(noise=()), totals, *released)
        return after._replace(noise=state.noise), report

    def lower(self, sequences_per_unit: int, length: int) -> LoweredStep:
        """Lower the programs of a step for the shapes of their arrays: nothing is computed, and no array is made.

        Args:
          sequences_per_unit: K, sequences of a unit.
          length: tokens that the model reads in a sequence.
        """
        by_device, everywhere = (NamedSharding(self._mesh, spec) for spec in (PartitionSpec(AXIS), PartitionSpec()))
        spread = self._shardings(self._param_specs)
        state = _placed(self._state_shapes, self._state_shardings)
        totals = _placed(jax.eval_shape(self._empty_totals), self._shardings(self._totals_specs()))
        chunk = _placed(self._chunk_shapes(sequences_per_unit, length), by_device)
        frozen = _placed(self._frozen_shapes, self._shardings(self._frozen_specs))
        programs = {"chunk": self._add.lower(state.params, totals, chunk, frozen)}
        if self._rules.clipping is None:
            programs["update"] = self._step.lower(state, totals)
            return LoweredStep(programs, state, totals.gradient, (), frozen)
        programs["noise"] = lower_draw(self._shapes, spread)
        with jax.enable_x64(True):
            noise = _placed(jax.tree_util.tree_map(lambda leaf: _shape(leaf.shape, np.float64), self._shapes), spread)
            programs["release"] = self._release.lower(totals.gradient, noise)
        norm = _placed(_shape((), np.float32), everywhere)
        mean = _placed(self._shapes, spread)
        programs["update"] = self._step.lower(state, totals._replace(gradient=()), _Released(mean, norm, norm))
        return LoweredStep(programs, state, totals.gradient, noise, frozen)

    def _chunk_shapes(self, sequences_per_unit: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        units = (self.chunk_units, sequences_per_unit)
        others = {"weight": _shape(units, np.float32)}
        if self._rules.drops:
            others["dropout"] = _shape((*units, 2), np.uint32)
        if self._model.objective == "causal":
            return {"tokens": _shape((*units, length + 1), np.int32)} | others
        return {name: _shape((*units, length), np.int32) for name in ("inputs", "targets")} | others

    def _spec(self, leaf: jax.ShapeDtypeStruct | np.ndarray) -> PartitionSpec:
        """Spread the longest axis that the devices divide, where the state is spread at all."""
        divisible = [size if size % self.devices == 0 else 0 for size in leaf.shape]
        if self._sharding == "data" or not any(divisible):
            return PartitionSpec()
        axis = int(np.argmax(divisible))
        return PartitionSpec(*[None] * axis, AXIS)

    def _totals_specs(self) -> BatchTotals:
        if self._sharding == "data":
            by_device = PartitionSpec(AXIS)
            return same_for_all(jax.tree_util.tree_map(lambda _: by_device, self._shapes), by_device)
        gradient = jax.tree_util.tree_map(lambda spec: PartitionSpec(None, *spec), self._param_specs, is_leaf=_is_spec)
        return same_for_all(gradient, PartitionSpec())

    def _shardings(self, specs: Any) -> Any:
        return jax.tree_util.tree_map(lambda spec: NamedSharding(self._mesh, spec), specs, is_leaf=_is_spec)

    def _empty_totals(self) -> BatchTotals:
        parts = self.devices if self._sharding == "data" else 1
        return empty_totals(self._shapes, parts, self._rules.clipping is not None)

    def _add_chunk(
        self, params: Params, totals: BatchTotals, chunk: dict[str, jax.Array], frozen: Params
    ) -> BatchTotals:
        kept = self._totals_specs()
        on_device = jax.shard_map(
            self._sum_microbatches,
            mesh=self._mesh,
            in_specs=(self._param_specs, kept, PartitionSpec(AXIS), self._frozen_specs),
            out_specs=kept,
            check_vma=False,
        )
        return on_device(params, totals, chunk, frozen)

    def _sum_microbatches(
        self, params: Params, totals: BatchTotals, chunk: dict[str, jax.Array], frozen: Params
    ) -> BatchTotals:
        """Add a device's microbatches one after another, to totals of its own or, where these are spread, of all."""
        size = self._rules.microbatch_size
        microbatches = jax.tree_util.tree_map(lambda array: array.reshape(-1, size, *array.shape[1:]), chunk)
        whole = jax.tree_util.tree_map(self._gathered, params, self._param_specs)
        model = given_frozen(self._model, jax.tree_util.tree_map(self._gathered, frozen, self._frozen_specs))

        def add(totals: BatchTotals, rows: dict[str, jax.Array]) -> tuple[BatchTotals, None]:
            def with_rows(totals: BatchTotals) -> BatchTotals:
                found = self._of_all_devices(microbatch_sums(self._rules, model, whole, rows, step=self._grid_step))
                added = jax.tree_util.tree_map(lambda total, one: total + one[None], totals, found)
                return added._replace(gradient=normalized(added.gradient))

            some = jnp.any(rows["weight"] > 0)
            if self._sharding == "full":
                # Where one device exchanges sums, all do.
                some = jax.lax.psum(some.astype(jnp.int32), AXIS) > 0
            return jax.lax.cond(some, with_rows, lambda totals: totals, totals), None

        return jax.lax.scan(add, totals, microbatches)[0]

    def _gathered(self, part: jax.Array, spec: PartitionSpec) -> jax.Array:
        return part if AXIS not in spec else jax.lax.all_gather(part, AXIS, axis=spec.index(AXIS), tiled=True)

    def _of_all_devices(self, found: BatchTotals) -> BatchTotals:
        """Where totals are spread, add up those of a microbatch of each device; a device gets the part that it keeps.

        Integers are added, below 2^20 each of those that are carried, so that there may be 2^11 devices.
        """
        if self._sharding == "data":
            return found

        def added(part: Any, spec: PartitionSpec) -> Any:
            if AXIS not in spec:
                return jax.lax.psum(part, AXIS)
            axis = spec.index(AXIS)
            return jax.tree_util.tree_map(
                lambda array: jax.lax.psum_scatter(array, AXIS, scatter_dimension=axis, tiled=True), part
            )

        gradient = jax.tree_util.tree_map(added, found.gradient, self._param_specs, is_leaf=is_exact)
        return jax.lax.psum(found._replace(gradient=()), AXIS)._replace(gradient=gradient)

    def _apply(self, state: TrainState, totals: BatchTotals) -> tuple[TrainState, StepReport]:
        summed = jax.tree_util.tree_map(lambda leaf: jnp.sum(leaf, axis=0), totals)
        mean = jax.tree_util.tree_map(lambda leaf: leaf / self._rules.batch_size, self._spread(summed.gradient))
        return self._update(state, summed._replace(gradient=()), _Released(mean, jnp.zeros(()), global_norm(mean)))

    def _apply_released(
        self, state: TrainState, totals: BatchTotals, released: _Released
    ) -> tuple[TrainState, StepReport]:
        summed = jax.tree_util.tree_map(lambda leaf: jnp.sum(leaf, axis=0), totals)
        return self._update(state, summed, released)

    def _update(self, state: TrainState, totals: BatchTotals, released: _Released) -> tuple[TrainState, StepReport]:
        updates, optimizer = self._optimizer.update(released.mean, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        finite = jnp.isfinite(global_norm(params))
        return TrainState(params, optimizer), StepReport(totals, released.norm, released.noise_norm, finite)

    def _noised(self, gradient: Params, noise: Params) -> _Released:
        """Add the noise of a step to the sums of the devices, where JAX's 64-bit types are enabled."""
        rules = self._rules
        mean, *norms = noised_mean(
            summed(gradient), noise, scale=rules.noise_multiplier, step=self._grid_step, divisor=rules.batch_size
        )
        return _Released(mean, *(norm.astype(jnp.float32) for norm in norms))

    def _spread(self, tree: Params) -> Params:
        return jax.tree_util.tree_map(jax.lax.with_sharding_constraint, tree, self._shardings(self._param_specs))


def _shape(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _placed(shapes: Any, shardings: Any) -> Any:
    """Say of shapes how their arrays are spread; one sharding may be that of a whole subtree."""
    return jax.tree_util.tree_map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        jax.tree.broadcast(shardings, shapes),
    )


def _is_spec(value: Any) -> bool:
    return isinstance(value, PartitionSpec)


def _dealt(array: np.ndarray, hands: int, together: int) -> np.ndarray:
    by_hand = array.reshape(-1, hands, together, *array.shape[1:])
    return np.ascontiguousarray(np.swapaxes(by_hand, 0, 1)).reshape(array.shape)
