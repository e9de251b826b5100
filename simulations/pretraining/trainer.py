"""Steps of central training on the devices of a mesh: sums over a logical batch, noise, optimizer.

A logical batch comes in chunks of one shape, each of these in microbatches, so that nothing is compiled again and a
batch may be larger than memory. Every microbatch adds its gradients to a running sum. With privacy those are clipped,
and a microbatch's sum is rounded to the nearest integers of a grid (`fl_core.exact_sums`), so that it does not matter
in what order sums are added, or where; noise is added once, to the sum of the whole batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from fedlm.fl_core.exact_sums import grid_step, normalized, number_of_coordinates, summed
from fedlm.fl_core.privacy.noise.noise_source import Draw, lower_draw, noise_from
from fedlm.fl_core.privacy.noise.noised_sums import noised_mean
from fedlm.fl_core.rounds.local_sgd import global_norm
from fedlm.models.base import Model, Params, given_frozen
from fedlm.simulations.pretraining.microbatches import BatchTotals, StepRules, empty_totals, microbatch_sums
from fedlm.simulations.pretraining.spread_state import AXIS, Sharding, Spread, shape_of, shapes_on

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
        self._model, self._optimizer, self._rules = model, optimizer, rules
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        self._spread = spread = Spread(devices, sharding, shapes)
        self.devices, self.batch_size = len(devices), rules.batch_size
        self.chunk_units = self.devices * MICROBATCHES * rules.microbatch_size
        self._frozen_specs, self._frozen_shapes = spread.specs(frozen), frozen
        self._frozen: Params = ()
        state_shapes = jax.eval_shape(lambda params: TrainState(params, optimizer.init(params)), shapes)
        self._state_shardings = spread.shardings(spread.specs(state_shapes))
        self._shapes, self._state_shapes = shapes, state_shapes
        self._grid_step = float(grid_step(np.float32(1.0), number_of_coordinates(shapes)))
        totals = spread.shardings(spread.totals())
        self._zero = jax.jit(self._empty_totals, out_shardings=totals)
        self._add = jax.jit(self._add_chunk, donate_argnums=1, out_shardings=totals)
        self._step = jax.jit(
            self._apply if rules.clipping is None else self._apply_released,
            donate_argnums=0,
            out_shardings=(self._state_shardings, spread.everywhere),
        )
        self._release = jax.jit(
            self._noised,
            out_shardings=_Released(*map(spread.shardings, (spread.params, PartitionSpec(), PartitionSpec()))),
        )
        self._replicate = jax.jit(lambda state: state, out_shardings=spread.everywhere)

    def fresh(self, params: Params) -> TrainState:
        """Make the state before the first step."""
        return jax.device_get(jax.jit(lambda params: TrainState(params, self._optimizer.init(params)))(params))

    def place(self, state: TrainState) -> TrainState:
        """Spread a state that every device of all processes has whole as this trainer keeps it."""
        return self._spread.place(state)

    def take_frozen(self, frozen: Params) -> None:
        """Spread the parameters that are not trained, which every process has whole, for all steps to come."""
        self._frozen = self._spread.place(frozen)

    def draw_noise(self, secret: bytes) -> Draw:
        """Make the noise of a secret, in the shapes of the model's parameters, spread as this trainer keeps them."""
        return noise_from(secret, self._shapes, self._spread.of_params)

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
        # Neighbours go to different devices, so that a chunk that is not full keeps all of them busy; clipped gradients
        # by microbatches, so that the same units are in one on any number of devices.
        local = self.devices // jax.process_count()
        together = 1 if self._rules.clipping is None else self._rules.microbatch_size
        arrays = {name: self._spread.rows(_dealt(array, local, together)) for name, array in chunk.items()}
        totals = self._add(params, totals, arrays, self._frozen)
        if self._spread.full and jax.default_backend() == "cpu":
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
        by_device, everywhere = self._spread.by_device, self._spread.everywhere
        of_params = self._spread.of_params
        state = shapes_on(self._state_shapes, self._state_shardings)
        totals = shapes_on(jax.eval_shape(self._empty_totals), self._spread.shardings(self._spread.totals()))
        chunk = shapes_on(self._chunk_shapes(sequences_per_unit, length), by_device)
        frozen = shapes_on(self._frozen_shapes, self._spread.shardings(self._frozen_specs))
        programs = {"chunk": self._add.lower(state.params, totals, chunk, frozen)}
        if self._rules.clipping is None:
            programs["update"] = self._step.lower(state, totals)
            return LoweredStep(programs, state, totals.gradient, (), frozen)
        programs["noise"] = lower_draw(self._shapes, of_params)
        with jax.enable_x64(True):
            noise = shapes_on(
                jax.tree_util.tree_map(lambda leaf: shape_of(leaf.shape, np.float64), self._shapes), of_params
            )
            programs["release"] = self._release.lower(totals.gradient, noise)
        norm = shapes_on(shape_of((), np.float32), everywhere)
        mean = shapes_on(self._shapes, of_params)
        programs["update"] = self._step.lower(state, totals._replace(gradient=()), _Released(mean, norm, norm))
        return LoweredStep(programs, state, totals.gradient, noise, frozen)

    def _chunk_shapes(self, sequences_per_unit: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        units = (self.chunk_units, sequences_per_unit)
        others = {"weight": shape_of(units, np.float32)}
        if self._rules.drops:
            others["dropout"] = shape_of((*units, 2), np.uint32)
        if self._model.objective == "causal":
            return {"tokens": shape_of((*units, length + 1), np.int32)} | others
        return {name: shape_of((*units, length), np.int32) for name in ("inputs", "targets")} | others

    def _empty_totals(self) -> BatchTotals:
        parts = 1 if self._spread.full else self.devices
        return empty_totals(self._shapes, parts, self._rules.clipping is not None)

    def _add_chunk(
        self, params: Params, totals: BatchTotals, chunk: dict[str, jax.Array], frozen: Params
    ) -> BatchTotals:
        kept = self._spread.totals()
        on_device = jax.shard_map(
            self._sum_microbatches,
            mesh=self._spread.mesh,
            in_specs=(self._spread.params, kept, PartitionSpec(AXIS), self._frozen_specs),
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
        whole = self._spread.gathered(params, self._spread.params)
        model = given_frozen(self._model, self._spread.gathered(frozen, self._frozen_specs))

        def add(totals: BatchTotals, rows: dict[str, jax.Array]) -> tuple[BatchTotals, None]:
            def with_rows(totals: BatchTotals) -> BatchTotals:
                found = self._spread.of_all_devices(
                    microbatch_sums(self._rules, model, whole, rows, step=self._grid_step)
                )
                added = jax.tree_util.tree_map(lambda total, one: total + one[None], totals, found)
                return added._replace(gradient=normalized(added.gradient))

            some = jnp.any(rows["weight"] > 0)
            if self._spread.full:
                # Where one device exchanges sums, all do.
                some = jax.lax.psum(some.astype(jnp.int32), AXIS) > 0
            return jax.lax.cond(some, with_rows, lambda totals: totals, totals), None

        return jax.lax.scan(add, totals, microbatches)[0]

    def _apply(self, state: TrainState, totals: BatchTotals) -> tuple[TrainState, StepReport]:
        summed = jax.tree_util.tree_map(lambda leaf: jnp.sum(leaf, axis=0), totals)
        mean = jax.tree_util.tree_map(lambda leaf: leaf / self._rules.batch_size, self._constrained(summed.gradient))
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

    def _constrained(self, tree: Params) -> Params:
        return jax.tree_util.tree_map(jax.lax.with_sharding_constraint, tree, self._spread.of_params)


def _dealt(array: np.ndarray, hands: int, together: int) -> np.ndarray:
    by_hand = array.reshape(-1, hands, together, *array.shape[1:])
    return np.ascontiguousarray(np.swapaxes(by_hand, 0, 1)).reshape(array.shape)
