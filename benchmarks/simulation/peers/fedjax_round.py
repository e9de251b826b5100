"""Contestant: FedJAX's own `federated_averaging`, in the reference environment, training fedlm's model functions.

Batches differ from the others' in one thing: FedJAX fills a client's last batch up with examples of one epoch more.

Usage: python -m benchmarks.simulation.peers.fedjax_round TASK [jit|pmap]
"""

import itertools
import os
import sys
from typing import Any

from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task


class FedjaxRound:
    """FedJAX's fast implementation of federated averaging."""

    variants = ("fedjax",)
    packages = ("fedjax", "jax", "jaxlib", "numpy")

    def __init__(self, task: Task, backend: str):
        import fedjax
        import jax

        from benchmarks.simulation.peers.jax_models import create
        from models.base import Batch, batch_loss

        settings = task.settings
        self.configuration = f"for_each_client backend {backend!r}, {jax.local_device_count()} JAX CPU device(s)"
        fedjax.set_for_each_client_backend(backend)
        model = create(settings.model, settings.vocabulary_size)

        def loss(params: Any, tokens: Any) -> Any:
            return batch_loss(model, params, Batch(tokens, jax.numpy.ones(tokens.shape[0])))[0]

        self._algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.jit(lambda params, batch, rng: jax.grad(loss)(params, batch["tokens"])),
            fedjax.optimizers.sgd(settings.learning_rate),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=settings.batch_size, num_epochs=1, seed=0),
        )
        self._clients = [(str(i), fedjax.ClientDataset({"tokens": rows})) for i, rows in enumerate(task.clients)]
        self._params = jax.tree_util.tree_map(jax.numpy.asarray, task.params)
        self._loss, self._evaluation, self._steps = jax.jit(loss), task.evaluation, task.steps
        self._seeds = itertools.count()
        self._jax = jax

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`."""
        jax = self._jax
        keys = jax.random.split(jax.random.PRNGKey(next(self._seeds)), len(self._clients))
        cohort = [(name, data, key) for (name, data), key in zip(self._clients, keys, strict=True)]
        state = self._algorithm.init(self._params)
        seconds, params = timed(lambda: jax.block_until_ready(self._algorithm.apply(state, cohort)[0].params))
        return RoundAnswer(seconds, self._steps, float(self._loss(params, self._evaluation)))


def main(path: str, backend: str = "jit") -> None:
    answers = private_standard_output()
    task = load_task(path)
    if backend == "pmap":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={task.settings.cores}"
    serve(FedjaxRound(task, backend), sys.stdin, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
