"""Contestant: pfl-research's simulated backend and federated averaging, on PyTorch.

With `torch.distributed.run` around it, each process trains its share of the clients, as pfl-research documents. Clients
read their examples in the order in which they are stored: pfl-research does not shuffle.

Usage: [python -m torch.distributed.run --nproc-per-node N -m] benchmarks.simulation.peers.pfl_round TASK [THREADS]
"""

import itertools
import os
import sys
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.model.pytorch import PyTorchModel

from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task
from benchmarks.simulation.peers.torch_models import create, evaluation_loss, split_tokens


class PflRound:
    """One process of pfl-research's simulation."""

    variants = ("pfl",)
    packages = ("pfl", "torch", "numpy")

    def __init__(self, task: Task, threads: int):
        settings = task.settings
        torch.set_num_threads(threads)
        np.random.seed(0)
        self._module = create(settings.model, task.params)
        self._model = PyTorchModel(self._module, torch.optim.SGD, torch.optim.SGD(_trained(self._module), lr=1.0))
        self._start = {name: value.clone() for name, value in self._module.state_dict().items()}
        processes = get_ops().distributed.world_size
        self.configuration = f"{processes} process(es), {threads} PyTorch thread(s) each"
        users = {str(i): Dataset(split_tokens(rows), user_id=str(i)) for i, rows in enumerate(task.clients)}
        self._order = _balanced_order([len(rows) for rows in task.clients], processes)
        data = FederatedDataset(users.__getitem__, lambda: next(self._next_users))
        self._backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
        self._algorithm, self._cohort = FederatedAveraging(), len(users)
        self._training = NNTrainHyperParams(
            local_learning_rate=settings.learning_rate, local_num_epochs=1, local_batch_size=settings.batch_size
        )
        self._evaluation, self._steps, self._rounds = task.evaluation, task.steps, 0

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`; the other processes follow this one."""
        _share(True)
        seconds = self.follow()
        return RoundAnswer(seconds, self._steps, evaluation_loss(self._module, self._evaluation))

    def follow(self) -> float:
        """Take part in a round; returns its seconds."""
        self._module.load_state_dict(self._start)
        self._rounds += 1
        self._next_users = itertools.cycle(self._order)
        # One algorithm goes on from round to round, because clients are also evaluated in its round 0, even without
        # being asked to.
        wanted = NNAlgorithmParams(
            central_num_iterations=self._rounds,
            evaluation_frequency=sys.maxsize,
            train_cohort_size=self._cohort,
            val_cohort_size=0,
        )
        return timed(lambda: self._algorithm.run(wanted, self._backend, self._model, self._training))[0]


def _trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _balanced_order(sizes: list[int], processes: int) -> list[str]:
    """Order clients so that processes, which take turns in picking, get about as much work each."""
    by_size = [str(index) for index in np.argsort(sizes)[::-1]]
    turns = [by_size[begin : begin + processes] for begin in range(0, len(by_size), processes)]
    return [client for index, turn in enumerate(turns) for client in (turn[::-1] if index % 2 else turn)]


def _share(goes_on: bool) -> bool:
    """Let the first process say whether there is another round."""
    if get_ops().distributed.world_size == 1:
        return goes_on
    message: Any = torch.tensor(float(goes_on))
    torch.distributed.broadcast(message, src=0)
    return bool(message)


def main(path: str, threads: str = "1") -> None:
    answers = private_standard_output()
    contestant = PflRound(load_task(path), int(threads))
    if os.environ.get("RANK", "0") == "0":
        serve(contestant, sys.stdin, answers)
        _share(False)
    else:
        while _share(False):
            contestant.follow()


if __name__ == "__main__":
    main(*sys.argv[1:])
