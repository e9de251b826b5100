"""Contestant: FedJAX's own `federated_averaging`, in the reference environment.

It trains fedlm's model functions, or (`own`) FedJAX's own Stack Overflow LSTM, of the same widths as `lstm_1m` and tied
as that is; what that model has learnt is not compared, since its parameters are others.

Batches differ from the others' in one thing: FedJAX fills a client's last batch up with examples of one epoch more.

Usage: python -m benchmarks.simulation.peers.fedjax_round TASK [jit|pmap] [own]
"""

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task


class FedjaxRound:
    """FedJAX's fast implementation of federated averaging."""

    variants = ("fedjax",)
    packages = ("fedjax", "jax", "jaxlib", "numpy")

    def __init__(self, task: Task, backend: str, own_model: bool):
        import fedjax
        import jax

        settings = task.settings
        devices, model = jax.local_device_count(), "FedJAX's own LSTM" if own_model else "fedlm's model functions"
        self.configuration = f"for_each_client backend {backend!r}, {devices} JAX CPU device(s), {model}"
        fedjax.set_for_each_client_backend(backend)
        training = (_own_lstm if own_model else _fedlm_model)(task)
        self._algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            training.gradient,
            fedjax.optimizers.sgd(settings.learning_rate),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=settings.batch_size, num_epochs=1, seed=0),
        )
        examples = map(training.examples, task.clients)
        self._clients = [(str(i), fedjax.ClientDataset(columns)) for i, columns in enumerate(examples)]
        self._params, self._loss, self._steps = training.params, training.loss_after, task.steps
        self._seeds = itertools.count()
        self._jax = jax

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`."""
        jax = self._jax
        keys = jax.random.split(jax.random.PRNGKey(next(self._seeds)), len(self._clients))
        cohort = [(name, data, key) for (name, data), key in zip(self._clients, keys, strict=True)]
        state = self._algorithm.init(self._params)
        seconds, params = timed(lambda: jax.block_until_ready(self._algorithm.apply(state, cohort)[0].params))
        return RoundAnswer(seconds, self._steps, self._loss(params))


class _Training(NamedTuple):
    params: Any
    gradient: Callable[[Any, Any, Any], Any]
    examples: Callable[[np.ndarray], dict[str, np.ndarray]]
    loss_after: Callable[[Any], float | None]


def _fedlm_model(task: Task) -> _Training:
    import jax

    from fedlm.interop.older_jax import supply_missing

    supply_missing()

    from benchmarks.simulation.peers.jax_models import create
    from fedlm.models.base import Batch, batch_loss

    model = create(task.settings.model, task.settings.vocabulary_size)

    @jax.jit
    def loss(params: Any, tokens: Any) -> Any:
        return batch_loss(model, params, Batch(tokens, jax.numpy.ones(tokens.shape[0])))[0]

    return _Training(
        params=jax.tree_util.tree_map(jax.numpy.asarray, task.params),
        gradient=jax.jit(lambda params, batch, rng: jax.grad(loss)(params, batch["tokens"])),
        examples=lambda tokens: {"tokens": tokens},
        loss_after=lambda params: float(loss(params, task.evaluation)),
    )


def _own_lstm(task: Task) -> _Training:
    import fedjax
    import jax

    if task.settings.model != "lstm_1m":
        raise SystemExit(f"FedJAX has no model of the shape of {task.settings.model}; `own` is for lstm_1m")
    special_tokens = 4
    model = fedjax.models.stackoverflow.create_lstm_model(
        task.settings.vocabulary_size - special_tokens, 128, 384, 1, share_input_output_embeddings=True
    )
    return _Training(
        params=model.init(jax.random.PRNGKey(0)),
        gradient=fedjax.model_grad(model),
        examples=lambda tokens: {"x": tokens[:, :-1], "y": tokens[:, 1:]},
        loss_after=lambda params: None,
    )


def main(path: str, backend: str = "jit", model: str = "fedlm") -> None:
    answers = private_standard_output()
    task = load_task(path)
    if backend == "pmap":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={task.settings.cores}"
    serve(FedjaxRound(task, backend, model == "own"), sys.stdin, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
