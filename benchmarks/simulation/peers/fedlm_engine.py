"""Contestant: fedlm's cohort engine, with uploads as they are and with 8-bit uploads.

Usage: python -m benchmarks.simulation.peers.fedlm_engine TASK
"""

import functools
import itertools
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.simulation.peers.jax_models import create
from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task
from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm
from fedlm.fl_core.client_algorithms.sgd import PLAIN_SGD
from fedlm.fl_core.rounds.aggregation import AggregationRules, CohortAggregate, mean_delta
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server, server_step
from fedlm.fl_core.updates.registry import COMPRESSION_OF_BITS, make_compressor
from fedlm.models.base import Batch, Params, batch_loss
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine

SERVER = ServerOptimizerConfig("fedavg")


class Variant(NamedTuple):
    """How the engine is run."""

    upload_bits: int = 32
    algorithm: ClientAlgorithm = PLAIN_SGD


VARIANTS = {"engine": Variant(), "engine_8bit": Variant(8)}


class Engine:
    """The cohort engine on one device a core, and the server's step."""

    packages = ("jax", "jaxlib", "numpy")
    configuration = "one JAX device a core, one lane each"

    def __init__(self, task: Task, variants: Mapping[str, Variant] = VARIANTS):
        self.variants, self._variants = tuple(variants), variants
        settings = task.settings
        self._model = create(settings.model, settings.vocabulary_size)
        self._params = jax.tree_util.tree_map(jnp.asarray, task.params)
        self._learning_rate = settings.learning_rate
        self._clients = np.arange(len(task.clients))
        self._evaluation = Batch(jnp.asarray(task.evaluation), jnp.ones(len(task.evaluation)))
        self._rounds = itertools.count()
        data, length = InMemoryData(task.clients), task.evaluation.shape[1] - 1
        self._engines = {
            name: CohortEngine(
                ClientWork(
                    self._model,
                    LocalTraining(batch_size=settings.batch_size, algorithm=variant.algorithm),
                    make_compressor(COMPRESSION_OF_BITS[variant.upload_bits]),
                    AggregationRules(),
                ),
                data,
                length,
            )
            for name, variant in variants.items()
        }
        self._memories = {name: one.algorithm.init_server(self._params) for name, one in variants.items()}

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`; batches are made within the time that is measured."""
        plan = RoundPlan(next(self._rounds), self._clients, 0, self._learning_rate)
        algorithm, memory = self._variants[variant].algorithm, self._memories[variant]

        def run() -> tuple[Params, int]:
            result = self._engines[variant].run(self._params, plan, memory=memory)
            return jax.block_until_ready(_average(algorithm, self._params, memory, result.aggregate)), result.steps

        seconds, (params, steps) = timed(run)
        return RoundAnswer(seconds, steps, float(_loss(self._model, params, self._evaluation)))


@functools.partial(jax.jit, static_argnums=0)
def _average(algorithm: ClientAlgorithm, params: Params, memory: Any, aggregate: CohortAggregate) -> Params:
    pseudo_gradient, _ = algorithm.update_server(memory, mean_delta(aggregate))
    return server_step(SERVER, init_server(SERVER, params), pseudo_gradient, jnp.ones(())).params


@functools.partial(jax.jit, static_argnums=0)
def _loss(model, params: Params, batch: Batch) -> jax.Array:
    return batch_loss(model, params, batch)[0]


def main(path: str) -> None:
    answers = private_standard_output()
    task = load_task(path)
    jax.config.update("jax_num_cpu_devices", task.settings.cores)
    serve(Engine(task), sys.stdin, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
