"""Contestant: bare jitted loops of as many SGD steps as the round has, on batches that already lie on the device.

They know nothing of clients and average nothing. `bare_lanes` splits the steps over one device a core; `bare_scan` is
one `lax.scan` in which all cores work on one step.

Usage: python -m benchmarks.simulation.peers.bare_loop TASK
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.simulation.peers.jax_models import create
from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task
from fedlm.fl_core.rounds.local_sgd import local_step
from fedlm.models.base import Batch, Model, Params

BY_DEVICE = PartitionSpec("devices")


class BareLoop:
    """Both loops."""

    variants = ("bare_lanes", "bare_scan")
    packages = ("jax", "jaxlib", "numpy")
    configuration = "bare_lanes: one JAX device a core, parameters donated; bare_scan: one device, all cores"

    def __init__(self, task: Task):
        settings = task.settings
        self._model, self._steps = create(settings.model, settings.vocabulary_size), task.steps
        self._params, self._rate = jax.tree_util.tree_map(jnp.asarray, task.params), settings.learning_rate
        everything = np.concatenate(task.clients)
        rows = np.resize(np.arange(len(everything)), (task.steps, settings.batch_size))
        self._batches = jax.device_put(Batch(everything[rows], np.ones(rows.shape, np.float32)))
        self._mesh = Mesh(np.array(jax.local_devices()), "devices")
        self._lanes = _cut_into_lanes(self._batches, self._mesh)

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`."""
        if variant == "bare_scan":
            run = functools.partial(_scan, self._model, self._params, self._batches, self._rate)
        else:
            devices = self._mesh.size
            copies = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * devices), self._params)
            copies = jax.block_until_ready(jax.device_put(copies, NamedSharding(self._mesh, BY_DEVICE)))
            counts = jnp.array([len(part) for part in np.array_split(np.arange(self._steps), devices)])
            run = functools.partial(_run_lanes, self._model, self._mesh, copies, self._lanes, counts, self._rate)
        seconds, _ = timed(lambda: jax.block_until_ready(run()))
        return RoundAnswer(seconds, self._steps, None)


def _cut_into_lanes(batches: Batch, mesh: Mesh) -> Batch:
    def cut(leaf: jax.Array) -> jax.Array:
        length = -(-len(leaf) // mesh.size)
        return jnp.resize(leaf, (mesh.size, length, *leaf.shape[1:]))

    return jax.device_put(jax.tree_util.tree_map(cut, batches), NamedSharding(mesh, BY_DEVICE))


@functools.partial(jax.jit, static_argnums=0)
def _scan(model: Model, params: Params, batches: Batch, rate: float) -> Params:
    def step(params: Params, batch: Batch) -> tuple[Params, None]:
        return local_step(model, params, batch, learning_rate=rate, gradient_clip=None)[0], None

    return jax.lax.scan(step, params, batches)[0]


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _run_lanes(model: Model, mesh: Mesh, params: Params, batches: Batch, counts: jax.Array, rate: float) -> Params:
    def lane(params: Any, batches: Any, count: Any, rate: Any) -> Any:
        params, batches, count = jax.tree_util.tree_map(lambda leaf: leaf[0], (params, batches, count))

        def step(index: jax.Array, params: Params) -> Params:
            batch = jax.tree_util.tree_map(lambda leaf: leaf[index], batches)
            return local_step(model, params, batch, learning_rate=rate, gradient_clip=None)[0]

        params = jax.lax.fori_loop(0, count, step, params)
        return jax.tree_util.tree_map(lambda leaf: leaf[None], params)

    in_specs = (BY_DEVICE, BY_DEVICE, BY_DEVICE, PartitionSpec())
    return jax.shard_map(lane, mesh=mesh, in_specs=in_specs, out_specs=BY_DEVICE, check_vma=False)(
        params, batches, counts, rate
    )


def main(path: str) -> None:
    answers = private_standard_output()
    task = load_task(path)
    jax.config.update("jax_num_cpu_devices", task.settings.cores)
    serve(BareLoop(task), sys.stdin, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
