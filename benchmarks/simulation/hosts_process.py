"""One of several processes that train cohorts together, each on a host of its own, and what a round cost it.

Variants of a round: `together` and `private` (sums of integers, as privacy needs them) are of all processes; in `alone`
each trains its share of the same cohort by itself and nothing is exchanged.

    python -m benchmarks.simulation.hosts_process TASK COORDINATOR NUM_PROCESSES PROCESS_ID

It speaks the line protocol of `benchmarks.simulation.peers.protocol`; each answer is a `HostAnswer`.
"""

import functools
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.simulation.namespaces import Counters, read_counters
from benchmarks.simulation.peers.jax_models import create
from benchmarks.simulation.peers.protocol import private_standard_output, serve
from benchmarks.simulation.peers.task import Task, load_task
from fedlm.commands.processes import ProcessGroup, join_processes
from fedlm.fl_core.aggregation import AggregationRules, CohortAggregate, mean_delta
from fedlm.fl_core.compression.registry import COMPRESSION_OF_BITS, make_compressor
from fedlm.fl_core.local_sgd import LocalTraining
from fedlm.fl_core.processes import from_first, lost_processes
from fedlm.fl_core.round_loop import RoundPlan
from fedlm.fl_core.server_optimizers import ServerOptimizerConfig, init_server, server_step
from fedlm.models.base import Params
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine import cohort_engine
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from fedlm.simulations.engine.lanes import balance_lanes

VARIANTS = ("together", "alone", "private")
SERVER = ServerOptimizerConfig("fedavg")
RULES = {
    "together": AggregationRules(),
    "alone": AggregationRules(),
    "private": AggregationRules("uniform", clip_norm=1.0, exact=True),
}


class HostAnswer(NamedTuple):
    """What a round cost a process.

    Attributes:
      seconds: from parameters to averaged parameters.
      steps: local steps of the whole cohort, or in `alone` of this process.
      loss_after: None; the line protocol wants it.
      checksum: sum of all values of the averaged parameters, as text of all its digits.
      begun: when the round began, on the machine's clock, which all namespaces share.
      arrived: when this process had trained its clients.
      ended: when it had the averaged parameters.
      training_cpu_seconds: CPU time of this process until it arrived.
      exchange_cpu_seconds: CPU time from then on.
      sent: bytes that had left this host when the round began, since it was made.
      received: bytes that had come to it.
      within: bytes that it had sent to itself.
    """

    seconds: float
    steps: int
    loss_after: None
    checksum: str
    begun: float
    arrived: float
    ended: float
    training_cpu_seconds: float
    exchange_cpu_seconds: float
    sent: int
    received: int
    within: int


class Moment(NamedTuple):
    """Time, and what was used until then."""

    clock: float
    cpu_seconds: float
    outside: Counters
    inside: Counters


def now() -> Moment:
    counters = read_counters()
    return Moment(time.monotonic(), time.process_time(), counters.get("eth0", Counters(0, 0)), counters["lo"])


class Host:
    """This process' part of the rounds; see `protocol.Contestant`."""

    packages = ("jax", "jaxlib", "numpy")
    configuration = "one process a host"
    variants = VARIANTS

    def __init__(self, task: Task):
        settings = task.settings
        model, data = create(settings.model, settings.vocabulary_size), InMemoryData(task.clients)
        training = LocalTraining(batch_size=settings.batch_size)
        compressor, length = make_compressor(COMPRESSION_OF_BITS[32]), task.evaluation.shape[1] - 1
        self._engines = {
            name: CohortEngine(
                ClientWork(model, training, compressor, RULES[name]),
                data,
                length,
                jax.local_devices() if name == "alone" else jax.devices(),
            )
            for name in VARIANTS
        }
        everywhere = from_first(task.params)
        self._params = {name: everywhere for name in VARIANTS} | {"alone": jax.device_put(task.params)}
        steps = training.count_steps(data.num_examples[np.arange(len(task.clients))])
        # Which lanes are this process' is the engine's own rule: the devices come in the order of the processes.
        lanes = balance_lanes(steps, jax.device_count())
        per_process = jax.local_device_count()
        own = lanes[per_process * jax.process_index() : per_process * (jax.process_index() + 1)]
        everyone = np.arange(len(task.clients))
        self._clients = {name: everyone for name in VARIANTS} | {"alone": np.sort(np.concatenate(own))}
        self._learning_rate = settings.learning_rate
        self._rounds = itertools.count()

    def run_round(self, variant: str) -> HostAnswer:
        """See `protocol.Contestant`."""
        plan = RoundPlan(next(self._rounds), self._clients[variant], 0, self._learning_rate)
        arrivals: list[Moment] = []
        begun = now()
        with mock.patch.object(cohort_engine, "lost_processes", noting(arrivals)):
            result = self._engines[variant].run(self._params[variant], plan)
        exchanged, (arrived,) = now(), arrivals
        params = jax.block_until_ready(_average(self._params[variant], result.aggregate, variant == "private"))
        return HostAnswer(
            seconds=time.monotonic() - begun.clock,
            steps=result.steps,
            loss_after=None,
            checksum=checksum(params),
            begun=begun.clock,
            arrived=arrived.clock,
            ended=exchanged.clock,
            training_cpu_seconds=arrived.cpu_seconds - begun.cpu_seconds,
            exchange_cpu_seconds=exchanged.cpu_seconds - arrived.cpu_seconds,
            sent=begun.outside.sent,
            received=begun.outside.received,
            within=begun.inside.sent,
        )


def noting(arrivals: list[Moment]):
    """Wrap the engine's wait for the other processes so that the moment at which it begins is noted."""

    @contextmanager
    def wrapped() -> Iterator[None]:
        arrivals.append(now())
        with lost_processes():
            yield

    return wrapped


@functools.partial(jax.jit, static_argnames="exact")
def _average(params: Params, aggregate: CohortAggregate, exact: bool) -> Params:
    if exact:  # what becomes of the integers, noise among others, is no part of the exchange
        return aggregate.delta
    return server_step(SERVER, init_server(SERVER, params), mean_delta(aggregate), jnp.ones(())).params


def checksum(params: Params) -> str:
    """Add up the bits of all arrays as integers, so that equal sums mean equal parameters for all purposes here."""
    own = (np.asarray(leaf.addressable_shards[0].data) for leaf in jax.tree_util.tree_leaves(params))
    weighed = (
        int(leaf.view(np.uint32).reshape(-1).astype(np.uint64) @ np.arange(1, leaf.size + 1, dtype=np.uint64))
        for leaf in own
    )
    return f"{sum(weighed) % 2**64:016x}"


def main(path: str, coordinator: str, num_processes: int, process_id: int) -> None:
    answers = private_standard_output()
    task = load_task(path)
    join_processes(
        ProcessGroup(
            coordinator=coordinator,
            num_processes=num_processes,
            process_id=process_id,
            devices=task.settings.cores,
        )
    )
    serve(Host(task), sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
