"""Runs rounds of FedJAX's federated averaging, with FedAdam, on our models and our batches.

Usage: fedjax_rounds.py TASK, a folder that `benchmarks.interop.task` wrote; parameters go to TASK/fedjax_ROUND.npz.
Prints {"versions": {..}, "scores": of the last parameters on all examples, as FedJAX computes them}.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.interop.task import Task
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.interop.fedjax import SplitForFedJax, model_for_fedjax, planned_cohort
from fedlm.interop.parameters import save_params
from fedlm.models.registry import create_model
from fedlm.simulations.data.splits_in_memory import RowsInMemory


def main(folder: str) -> None:
    """Run the rounds."""
    task = Task.load(Path(folder))
    setting, split = task.setting, RowsInMemory(task.clients)
    model = model_for_fedjax(create_model(setting.model, setting.vocabulary_size))
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(setting.client_rate),
        fedjax.optimizers.adam(setting.server_rate, eps=setting.epsilon),
        fedjax.ShuffleRepeatBatchHParams(setting.batch_size),
    )
    state = algorithm.init(jax.tree_util.tree_map(jnp.asarray, task.params))
    for round_number in range(setting.rounds):
        plan = RoundPlan(round_number, np.arange(len(task.clients)), seed=0, learning_rate=setting.client_rate)
        cohort = planned_cohort(split, setting.length, LocalTraining(setting.batch_size), plan)
        state, _ = algorithm.apply(state, cohort)
        save_params(Path(folder) / f"fedjax_{round_number}.npz", state.params)
    data = SplitForFedJax(split, setting.length)
    batches = fedjax.padded_batch_federated_data(data, batch_size=16)
    scores = {name: float(value) for name, value in fedjax.evaluate_model(model, state.params, batches).items()}
    versions = {name: version(name) for name in ("fedjax", "jax", "numpy")}
    json.dump({"versions": versions, "scores": scores}, sys.stdout)


main(*sys.argv[1:])
