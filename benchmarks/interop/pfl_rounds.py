"""Runs rounds of pfl-research's federated averaging, with Adam on the server, on our models as PyTorch modules.

Usage, in the peers' environment: pfl_rounds.py TASK, a folder that `benchmarks.interop.task` wrote. Logits of the first
parameters go to TASK/logits.npz, parameters to TASK/pfl_ROUND.npz. Prints {"versions": {..}}.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

from benchmarks.interop.task import Task
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.interop.parameters import save_params
from fedlm.interop.pfl import planned_data
from fedlm.interop.torch import module_from_params, split_tokens
from fedlm.models.registry import MODELS
from fedlm.simulations.data.splits_in_memory import RowsInMemory


def main(folder: str) -> None:
    task = Task.load(Path(folder))
    setting, split = task.setting, RowsInMemory(task.clients)
    heads = getattr(MODELS[setting.model].config, "heads", None)
    module = module_from_params(task.params, heads, setting.model.startswith("si_"))
    with torch.no_grad():
        rows = np.concatenate(list(task.clients.values()))
        save_params(Path(folder) / "logits.npz", {"logits": module(split_tokens(rows)[0]).numpy()})
    server = torch.optim.Adam(module.parameters(), lr=setting.server_rate, eps=setting.epsilon)
    model = PyTorchModel(module, torch.optim.SGD, server)
    training = NNTrainHyperParams(
        local_learning_rate=setting.client_rate, local_num_epochs=1, local_batch_size=setting.batch_size
    )
    wanted = NNAlgorithmParams(
        central_num_iterations=1,
        evaluation_frequency=sys.maxsize,
        train_cohort_size=len(task.clients),
        val_cohort_size=0,
    )
    for number in range(setting.rounds):
        plan = RoundPlan(number, np.arange(len(task.clients)), seed=0, learning_rate=setting.client_rate)
        data = planned_data(split, setting.length, LocalTraining(setting.batch_size), plan)
        backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
        FederatedAveraging().run(wanted, backend, model, training)
        save_params(Path(folder) / f"pfl_{number}.npz", module.params())
    json.dump({"versions": {name: version(name) for name in ("pfl", "torch", "numpy")}}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
