"""Where the time of a round goes: input, training, aggregation, noise, the server's step; and whether the device idles.

Three kinds of rounds take turns: whole ones; ones whose chunks of input lie on the device before they begin; and such
ones in which no client ever ends, so that nothing is compressed, clipped and added up. Their differences are the input
that training did not hide, and aggregation. Noise and the server's step follow a round, and are timed by themselves. A
profile, where the device's profiler works, says how long the device did nothing, and on what it spent its time.
"""

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.accelerator.kernels import profile_of
from benchmarks.accelerator.rounds import STEPS_PER_CHUNK, Rounds, client_work, draw_clients
from benchmarks.accelerator.timing import first_seconds, time_runs
from fedlm.fl_core.exact_sums import grid_step, number_of_coordinates, on_grid
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation, PrivateRounds
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.rounds.aggregation import CohortAggregate
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server, server_step
from fedlm.models.base import Params, parameter_count
from fedlm.models.precision import Precision, precision_scope, with_precision
from fedlm.models.registry import create_model
from fedlm.simulations.data.federated_data import FederatedData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from fedlm.simulations.engine.lane_count import choose_lanes
from fedlm.simulations.engine.lanes import LaneChunk, LaneShape, lane_chunks

PLANNED = 1024
NOISE_ROUNDS = 8


class WithInputInPlace(CohortEngine):
    """An engine whose rounds get chunks that lie on the devices already."""

    def __init__(self, work: ClientWork, data: FederatedData, length: int, lanes: int, chunks: list[LaneChunk]):
        super().__init__(work, data, length, devices=None, lanes_per_device=lanes, steps_per_chunk=STEPS_PER_CHUNK)
        self._in_place = chunks

    def _chunks(self, plan: RoundPlan) -> Any:
        return self._in_place


def measure(
    model: str,
    precision: Precision,
    lanes: int | None,
    clients: int,
    most_steps: int,
    length: int,
    vocabulary: int,
    patience: float,
) -> dict[str, Any]:
    """Take a round apart; arguments are those of `rounds.measure`."""
    training, data = LocalTraining(max_batches=most_steps), draw_clients(clients, vocabulary, length, most_steps)
    built = with_precision(create_model(model, vocabulary), precision)
    params, work = built.init(jax.random.key(0)), client_work(built, training)
    chosen = lanes or choose_lanes(parameter_count(built), clients, training.count_steps(data.num_examples))
    shape = LaneShape(jax.local_device_count(), chosen, STEPS_PER_CHUNK, length)
    plan = RoundPlan(0, np.arange(clients), 0, 0.1)
    made = first_seconds(lambda: [chunk.num_steps for chunk in lane_chunks(data, plan, training, shape)])
    chunks = [_placed(chunk) for chunk in lane_chunks(data, plan, training, shape)]
    endless = [chunk._replace(last=jnp.zeros_like(chunk.last)) for chunk in chunks]
    with precision_scope(precision):
        whole = Rounds(
            CohortEngine(work, data, length, devices=None, lanes_per_device=chosen, steps_per_chunk=STEPS_PER_CHUNK),
            params,
            clients,
        )
        in_place = WithInputInPlace(work, data, length, chosen, chunks)
        without_ends = WithInputInPlace(work, data, length, chosen, endless)
        kinds = {
            "whole": whole.run,
            "input_in_place": lambda: in_place.run(params, plan).aggregate,
            "training": lambda: without_ends.run(params, plan).aggregate,
        }
        first_seconds(lambda: whole.run(2 * jax.local_device_count()))
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        began = time.perf_counter()
        while not times["whole"] or time.perf_counter() - began < patience:
            for kind, run in kinds.items():
                times[kind].append(time_runs(run, 0.0, least=1).median)
        aggregate = kinds["input_in_place"]()
    seconds = {kind: statistics.median(values) for kind, values in times.items()}
    after = _after_the_round(params, aggregate, clients)
    parts = {
        "input": max(0.0, seconds["whole"] - seconds["input_in_place"]),
        "training": seconds["training"],
        "aggregation": max(0.0, seconds["input_in_place"] - seconds["training"]),
        **after,
    }
    return {
        "lanes": chosen,
        "clients": clients,
        "seconds": {kind: [round(value, 6) for value in values] for kind, values in times.items()},
        "seconds_of_parts": parts,
        "shares": {part: value / sum(parts.values()) for part, value in parts.items()},
        "seconds_to_make_the_input": made,
    }


def profile(
    model: str, precision: Precision, lanes: int | None, clients: int, most_steps: int, length: int, vocabulary: int
) -> dict[str, Any]:
    """Profile a round; arguments are those of `rounds.measure`."""
    training, data = LocalTraining(max_batches=most_steps), draw_clients(clients, vocabulary, length, most_steps)
    built = with_precision(create_model(model, vocabulary), precision)
    chosen = lanes or choose_lanes(parameter_count(built), clients, training.count_steps(data.num_examples))
    with precision_scope(precision):
        engine = CohortEngine(
            client_work(built, training),
            data,
            length,
            devices=None,
            lanes_per_device=chosen,
            steps_per_chunk=STEPS_PER_CHUNK,
        )
        rounds = Rounds(engine, built.init(jax.random.key(0)), clients)
        first_seconds(lambda: rounds.run(2 * jax.local_device_count()))
        return profile_of(rounds.run)


def _placed(chunk: LaneChunk) -> LaneChunk:
    mesh = Mesh(np.array(jax.local_devices()), "devices")
    return jax.block_until_ready(jax.device_put(chunk, NamedSharding(mesh, PartitionSpec("devices"))))


def _after_the_round(params: Params, aggregate: CohortAggregate, clients: int) -> dict[str, float]:
    """Time the noise of a tree, averaged over some rounds, and the server's step of FedAdam."""
    plan = PrivacyPlan("tree", PLANNED, 1.0, BoundedParticipation(1, 1))
    private = PrivateRounds(PrivateAggregation(plan, 1.0, clients), fresh_secret(), params)
    sizes = number_of_coordinates(params)
    server = ServerOptimizerConfig()
    exact = aggregate._replace(delta=on_grid(aggregate.delta, grid_step(np.float32(1.0), sizes), "to_nearest"))
    state, step = init_server(server, params), jax.jit(lambda state, delta: server_step(server, state, delta, 0.01))

    def noisy_rounds() -> Any:
        now, deltas = private.init(), None
        for number in range(NOISE_ROUNDS):
            mean = private.next(now, exact, number)
            now, deltas = mean.state, mean.delta
        return deltas

    first_seconds(noisy_rounds)
    first_seconds(lambda: step(state, aggregate.delta))
    return {
        "noise": time_runs(noisy_rounds, 0.0).median / NOISE_ROUNDS,
        "server's step": time_runs(lambda: step(state, aggregate.delta), 0.0).median,
    }
