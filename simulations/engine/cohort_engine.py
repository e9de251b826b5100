"""The vectorised engine: a `CohortRunner` that trains whole cohorts in one compiled program.

Each device runs its lanes (see `lanes`) in one loop over steps: a client's last step adds the lane's compressed,
decompressed, screened and clipped update to the device's sum, and resets the lane to the server's parameters.
So memory does not depend on the number of clients, no per-client update outlives its lane, and nothing is
compiled again when cohorts differ. `vmap` runs the lanes of a device together,
`shard_map` the devices, which may be those of several processes.
"""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.client_algorithms.interface import (
    Broadcast,
    ClientAlgorithm,
    all_finite,
    sent_by_client,
)
from fedlm.fl_core.exact_sums import like_of
from fedlm.fl_core.processes import lost_processes
from fedlm.fl_core.rounds.aggregation import (
    AggregationRules,
    contribution,
    empty_aggregate,
)
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums, algorithm_step
from fedlm.fl_core.rounds.round_loop import CohortResult, RoundPlan
from fedlm.fl_core.updates.compressors import Compressor, compress_update, decompress_update
from fedlm.fl_core.updates.update_bytes import download_bytes, upload_bytes
from fedlm.models.base import Batch, Model, Params, given_frozen
from fedlm.simulations.data.federated_data import FederatedData
from fedlm.simulations.engine.client_states import ClientStates
from fedlm.simulations.engine.device_sums import BY_DEVICE, add_devices, rows_of_devices
from fedlm.simulations.engine.lane_states import DeviceState, LaneState, Reported, end_client, end_clients
from fedlm.simulations.engine.lanes import LaneChunk, LaneShape, empty_chunk, lane_chunks
from fedlm.simulations.engine.prefetching import Prefetched

CHUNKS_AHEAD = 4
"""Chunks made before they are needed, of this cohort or of the next."""


@dataclass(frozen=True)
class ClientWork:
    """What every client of a cohort does, and what the server makes of it."""

    model: Model
    training: LocalTraining
    compressor: Compressor  # how the update travels
    rules: AggregationRules  # how the server screens and weighs it


class RoundSetting(NamedTuple):
    """What changes from round to round without compiling anew."""

    learning_rate: jax.typing.ArrayLike  # float scalar, of the clients' SGD
    clip_norm: jax.typing.ArrayLike | None  # float scalar, of updates; None leaves their norms alone
    upload_key: jax.Array  # see `fedlm.fl_core.rounds.round_loop.RoundPlan.upload_key`


class CohortEngine:
    """Simulates cohorts on the devices of this process, or of all processes joined by `jax.distributed`.

    Attributes:
      states: what clients keep to themselves, without which no cohort runs where they keep anything.
      everywhere: where what all devices have lies.
    """

    def __init__(
        self,
        work: ClientWork,
        data: FederatedData,
        length: int,
        *,
        devices: Sequence[jax.Device] | None = None,
        lanes_per_device: int = 1,
        steps_per_chunk: int = 32,
        frozen: Params = (),
        states: ClientStates | None = None,
    ):
        """Prepare an engine; compilation happens at the first cohort.

        Without devices it runs on all of all processes. One lane a device, a client trained on it at a time, is best on
        a CPU core; an accelerator takes as many as fill it, each of which holds parameters, gradients and an update.
        `steps_per_chunk` local steps are handed to the devices at once. The model may need `frozen` parameters, which
        are not trained and do not travel; see `fedlm.models.base.given_frozen`.
        """
        devices = jax.devices() if devices is None else devices
        self._work, self._data, self.states = work, data, states
        self._shape = LaneShape(len(devices), lanes_per_device, steps_per_chunk, length)
        self._own = [place for place, device in enumerate(devices) if device.process_index == jax.process_index()]
        self._mesh = rows_of_devices(devices)
        self._by_device = NamedSharding(self._mesh, BY_DEVICE)
        self.everywhere = NamedSharding(self._mesh, PartitionSpec())
        self._frozen = jax.device_put(frozen, self.everywhere)
        self._thread = ThreadPoolExecutor(1, "prepare-cohorts")
        self._announced: RoundPlan | None = None
        self._prepared: tuple[RoundPlan, Prefetched[LaneChunk]] | None = None

    def compile(self, server: Broadcast, clip_norm: float | None) -> None:
        """Compile what `run` needs where clients keep nothing, given `jax.ShapeDtypeStruct`s of what they are sent."""
        algorithm, exact = self._work.training.algorithm, self._work.rules.exact
        server = placed(server, self.everywhere)
        make_state = _first_state.lower(algorithm, server, self._shape, self._mesh, exact=exact)
        make_state.compile()
        state = placed(make_state.out_info, self._by_device)._replace(kept=algorithm.init_client(server.params))
        chunk = placed(jax.eval_shape(lambda: empty_chunk(self._shape, self._work.training)), self._by_device)
        setting = RoundSetting(1.0, clip_norm, jax.eval_shape(lambda: jax.random.key(0)))
        _run_chunk.lower(
            self._work, self._mesh, server, setting, state=state, chunk=chunk, frozen=self._frozen
        ).compile()
        add_devices.lower(state.aggregate, self._mesh).compile()

    def announce(self, plan: RoundPlan) -> None:
        """Remember the next plan; its first chunks are made while the devices are busy."""
        self._announced = plan

    def _chunks(self, plan: RoundPlan) -> Prefetched[LaneChunk]:
        if self._prepared is not None and self._prepared[0] is plan:
            return self._prepared[1]
        chunks = lane_chunks(self._data, plan, self._work.training, self._shape, own_devices=self._own)
        return Prefetched(chunks, self._thread, CHUNKS_AHEAD)

    def run(self, params: Params, plan: RoundPlan, clip_norm: float | None = None, memory: Any = ()) -> CohortResult:
        setting = RoundSetting(plan.learning_rate, clip_norm, plan.upload_key())
        server = jax.device_put(Broadcast(params, memory), self.everywhere)
        kept, trained_on = self._kept(params, plan), np.full(len(plan.clients), -1)
        algorithm, exact = self._work.training.algorithm, self._work.rules.exact
        state = _first_state(algorithm, server, self._shape, self._mesh, exact=exact)._replace(kept=kept)
        for chunk in self._chunks(plan):
            for row, device in enumerate(self._own):
                trained_on[chunk.place[row][chunk.last[row]]] = device
            on_devices = jax.make_array_from_process_local_data(self._by_device, chunk)
            state = _run_chunk(
                self._work, self._mesh, server, setting, state=state, chunk=on_devices, frozen=self._frozen
            )
        following, self._announced = self._announced, None
        self._prepared = None if following is None else (following, self._chunks(following))
        steps = self._work.training.count_steps(self._data.num_examples[plan.clients])
        # With several programs in flight, the sum over devices could deadlock JAX's CPU devices.
        by_device = jax.block_until_ready(state.aggregate)
        self._keep(plan, state.kept, trained_on)
        with lost_processes():
            aggregate = jax.block_until_ready(add_devices(by_device, self._mesh))
        return CohortResult(
            aggregate=aggregate,
            steps=int(steps.sum()),
            bytes_down=len(plan.clients) * download_bytes(server),
            bytes_up=int(aggregate.clients - aggregate.dropped)
            * upload_bytes(self._work.compressor, like_of(aggregate.delta)),
        )

    def _kept(self, params: Params, plan: RoundPlan) -> Any:
        """Read what a cohort keeps, for each device, in arrays of a size that most cohorts share."""
        first = self._work.training.algorithm.init_client(params)
        if not jax.tree_util.tree_leaves(first):
            return first
        assert self.states is not None
        rows = self.states.read(plan.clients, first, room=1 << max(len(plan.clients) - 1, 0).bit_length())
        return jax.tree_util.tree_map(
            lambda leaf: jax.device_put(np.broadcast_to(leaf, (self._shape.devices, *leaf.shape)), self._by_device),
            rows,
        )

    def _keep(self, plan: RoundPlan, kept: Any, trained_on: np.ndarray) -> None:
        """Write what each client of a cohort has kept, on the device that it was trained on; -1 for none."""
        if self.states is not None:
            places = np.flatnonzero(trained_on >= 0)
            rows = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[trained_on[places], places], kept)
            self.states.write(plan.round_number, plan.clients[places], rows)


def placed(shapes: Any, sharding: NamedSharding) -> Any:
    """Say of `jax.ShapeDtypeStruct`s where their arrays lie."""
    return jax.tree_util.tree_map(lambda leaf: leaf.update(sharding=sharding), shapes)


@functools.partial(jax.jit, static_argnames=("algorithm", "shape", "mesh", "exact"))
def _first_state(
    algorithm: ClientAlgorithm, server: Broadcast, shape: LaneShape, mesh: Mesh, *, exact: bool
) -> DeviceState:
    def everywhere(tree: Any, *leading: int) -> Any:
        def one(leaf: jax.typing.ArrayLike) -> jax.Array:
            full = jnp.broadcast_to(leaf, (*leading, *jnp.shape(leaf)))
            return jax.lax.with_sharding_constraint(full, NamedSharding(mesh, BY_DEVICE))

        return jax.tree_util.tree_map(one, tree)

    aggregate = empty_aggregate(sent_by_client(algorithm, server.params), exact)
    lanes = everywhere(_fresh(algorithm, server), shape.devices, shape.lanes)
    return DeviceState(lanes, everywhere(aggregate, shape.devices), ())


def _fresh(algorithm: ClientAlgorithm, server: Broadcast) -> LaneState:
    """Make the state of a lane whose next client is about to begin."""
    return LaneState(algorithm.init(server), TrainingSums.zero())


@functools.partial(jax.jit, static_argnames=("work", "mesh"), donate_argnames=("state",))
def _run_chunk(
    work: ClientWork,
    mesh: Mesh,
    server: Broadcast,
    setting: RoundSetting,
    *,
    state: DeviceState,
    chunk: LaneChunk,
    frozen: Params,
) -> DeviceState:
    return jax.shard_map(
        functools.partial(_run_device_chunk, work),
        mesh=mesh,
        in_specs=(PartitionSpec(), BY_DEVICE, BY_DEVICE),
        out_specs=BY_DEVICE,
        check_vma=False,
    )((server, setting, frozen), state, chunk)


def _run_device_chunk(
    work: ClientWork, given: tuple[Broadcast, RoundSetting, Params], state: DeviceState, chunk: LaneChunk
) -> DeviceState:
    server, setting, frozen = given
    state, chunk = jax.tree_util.tree_map(lambda leaf: leaf[0], (state, chunk))
    algorithm, lanes = work.training.algorithm, chunk.last.shape[1]
    model = given_frozen(work.model, frozen)
    num_steps, steps = chunk.num_steps, chunk._replace(num_steps=chunk.last)
    keeps = bool(jax.tree_util.tree_leaves(state.kept))
    single = lanes == 1
    together, end = (lambda f: f, end_client) if single else (jax.vmap, end_clients)

    def train(lane: LaneState, inputs: LaneChunk, kept: Any) -> LaneState:
        if keeps:
            begun = algorithm.begin(server, kept)
            choose = functools.partial(jnp.where, inputs.first)
            lane = lane._replace(local=jax.tree_util.tree_map(choose, begun, lane.local))
        keys = None if inputs.dropout is None else jnp.asarray(inputs.dropout)
        batch = Batch(jnp.asarray(inputs.tokens), jnp.asarray(inputs.weight), dropout=keys)
        clip = work.training.gradient_clip
        stepped, sums = algorithm_step(
            model, algorithm, server, lane.local, batch=batch, learning_rate=setting.learning_rate, gradient_clip=clip
        )
        return LaneState(stepped, jax.tree_util.tree_map(jnp.add, lane.sums, sums))

    def report(lane: LaneState, inputs: LaneChunk) -> Reported:
        delta = algorithm.finish(server, lane.local)
        key = jax.random.fold_in(setting.upload_key, inputs.client)
        compressed = compress_update(work.compressor, key, delta)
        received = decompress_update(work.compressor, key, compressed, delta)
        kept = algorithm.keep(lane.local)
        if keeps:
            # A device whose layers are ruined sends nothing.
            whole = all_finite(kept)
            received = jax.tree_util.tree_map(lambda leaf: jnp.where(whole, leaf, jnp.nan), received)
        examples = jnp.asarray(inputs.num_examples)
        update = contribution(received, examples, lane.sums, work.rules, clip_norm=setting.clip_norm)
        counts = (update.dropped == 0) & inputs.last
        update = jax.tree_util.tree_map(lambda leaf: jnp.where(inputs.last, leaf, jnp.zeros_like(leaf)), update)
        return Reported(update, kept, counts)

    def step(index: jax.Array, state: DeviceState) -> DeviceState:
        inputs = jax.tree_util.tree_map(lambda leaf: leaf[index], steps)
        kept = jax.tree_util.tree_map(lambda leaf: leaf[inputs.place], state.kept)
        trained = together(train)(state.lanes, inputs, kept)
        return end(report, _fresh(algorithm, server), state._replace(lanes=trained), inputs)

    if single:
        # With an axis of lanes the compiler would copy the parameters at every step.
        state = state._replace(lanes=jax.tree_util.tree_map(lambda leaf: leaf[0], state.lanes))
        steps = jax.tree_util.tree_map(lambda leaf: leaf[:, 0], steps)
    state = jax.lax.fori_loop(0, num_steps, step, state)
    if single:
        state = state._replace(lanes=jax.tree_util.tree_map(lambda leaf: leaf[None], state.lanes))
    return jax.tree_util.tree_map(lambda leaf: leaf[None], state)
