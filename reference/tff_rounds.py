"""Runs rounds of TensorFlow Federated on our models and our batches, each TASK in another way.

Usage: tff_rounds.py KIND TASK, with a folder that `benchmarks.interop.task` wrote and a KIND that is
  mean: weighted federated averaging with FedAdam, and TFF's evaluation of the last parameters
  clipped: means of clipped updates that all weigh the same
  tree: DP-FTRL, tree aggregation, clipped to what our private sums are clipped to; the noise of each round's sum goes
    to TASK/noise_ROUND.npz
Parameters go to TASK/tff_ROUND.npz. Prints {"versions": {..}, "scores": {..} or null}.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from benchmarks.interop.task import Setting, Task
from fedlm.fl_core.exact_sums import SAFETY
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.interop.parameters import save_params
from fedlm.interop.tff import FedAdam, SplitForTff, model_for_tff, params_from_tff, planned_datasets
from fedlm.models.registry import create_model
from fedlm.simulations.data.splits_in_memory import RowsInMemory

NOISE_SEED = 11


def main(kind: str, folder: str) -> None:
    """Run the rounds."""
    task = Task.load(Path(folder))
    setting, split = task.setting, RowsInMemory(task.clients)
    model = model_for_tff(create_model(setting.model, setting.vocabulary_size), task.params, setting.length)
    specs = tuple(tf.TensorSpec(leaf.shape, tf.float32) for leaf in model.initial_weights[0])
    process = PROCESSES[kind](model, setting, specs)
    noise = noises(setting, specs) if kind == "tree" else None
    state = process.initialize()
    for number in range(setting.rounds):
        plan = RoundPlan(number, np.arange(len(task.clients)), seed=0, learning_rate=setting.client_rate)
        data = planned_datasets(split, setting.length, LocalTraining(setting.batch_size), plan)
        state = process.next(state, data).state
        weights = process.get_model_weights(state)
        save_params(Path(folder) / f"tff_{number}.npz", params_from_tff(weights, task.params))
        if noise is not None:
            save_params(Path(folder) / f"noise_{number}.npz", unflattened(next(noise), task.params))
    scores = evaluated(model, weights, SplitForTff(split, setting.length)) if kind == "mean" else None
    versions = {name: version(name) for name in ("tensorflow-federated", "tensorflow", "tensorflow-privacy", "jax")}
    json.dump({"versions": versions, "scores": scores}, sys.stdout)


def mean(model: Any, setting: Setting, specs: Any) -> Any:
    """Build weighted federated averaging with FedAdam."""
    return tff.learning.algorithms.build_weighted_fed_avg(
        model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(setting.client_rate),
        server_optimizer_fn=FedAdam(setting.server_rate, epsilon=setting.epsilon),
    )


def clipped(model: Any, setting: Setting, specs: Any) -> Any:
    """Build unweighted federated averaging of clipped updates."""
    clients = float(len(setting.sizes))
    aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, clients, setting.clip_norm)
    return unweighted(model, setting, aggregator)


def tree(model: Any, setting: Setting, specs: Any) -> Any:
    """Build DP-FTRL."""
    aggregator = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
        noise_multiplier=setting.noise_multiplier / SAFETY,
        clients_per_round=float(len(setting.sizes)),
        l2_norm_clip=setting.clip_norm * SAFETY,
        record_specs=specs,
        noise_seed=NOISE_SEED,
        use_efficient=False,
    )
    return unweighted(model, setting, aggregator)


def unweighted(model: Any, setting: Setting, aggregator: Any) -> Any:
    """Build federated averaging with a server that takes plain steps."""
    return tff.learning.algorithms.build_unweighted_fed_avg(
        model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(setting.client_rate),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(setting.server_rate),
        model_aggregator=aggregator,
    )


PROCESSES = {"mean": mean, "clipped": clipped, "tree": tree}


def noises(setting: Setting, specs: Any) -> Any:
    """Give the noise of each round's sum: that of the same query of TensorFlow Privacy, of sums that are zero."""
    query = tfp.TreeResidualSumQuery.build_l2_gaussian_query(
        setting.clip_norm * SAFETY, setting.noise_multiplier / SAFETY, specs, noise_seed=NOISE_SEED, use_efficient=False
    )
    zeros, state = tuple(tf.zeros(spec.shape) for spec in specs), query.initial_global_state()
    while True:
        noise, state, _ = query.get_noised_result(zeros, state)
        yield [leaf.numpy() for leaf in noise]


def unflattened(leaves: Any, like: Any) -> Any:
    """Arrange leaves as parameters are."""
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)


def evaluated(model: Any, weights: Any, data: SplitForTff) -> dict[str, float]:
    """Evaluate weights on all clients by TFF's federated evaluation."""
    process = tff.learning.algorithms.build_fed_eval(model)
    state = process.set_model_weights(process.initialize(), weights)
    batched = [data.create_tf_dataset_for_client(name).batch(16) for name in data.client_ids]
    found = process.next(state, batched).metrics["client_work"]["eval"]["current_round_metrics"]
    return {name: float(value) for name, value in found.items()}


main(*sys.argv[1:])
