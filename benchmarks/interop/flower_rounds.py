"""Runs rounds of our strategy and our client app over Flower's messages, without its network.

Usage, in the peers' environment: flower_rounds.py TASK STRATEGY, with a folder that `benchmarks.interop.task` wrote and
  ours: FedAdam
  private: our DP-FTRL, with next to no noise
  theirs: Flower's FedAvg
Parameters go to TASK/flower_ROUND.npz. Prints {"versions": {..}, "metrics": of the last round, "asked": how many nodes
one round more asks, "dropped": how many of its replies count for nothing where one has other arrays}.
"""

import json
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.interop.task import Setting, Task
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig
from fedlm.interop.flower import FedlmStrategy, arrays_from_params, make_client_app, params_from_arrays
from fedlm.interop.parameters import save_params
from fedlm.models.registry import create_model


class GridInProcess:
    """Nodes that answer at once; what Flower's strategies need of a `Grid`."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self._app, self._nodes = app, range(nodes)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(run_id=1, node_id=node, node_config={"partition-id": node}, state=RecordDict(), run_config={})
        return self._app(message, context)


def main(folder: str, strategy: str) -> None:
    # What Flower's own processes know of themselves, and messages ask for.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    task = Task.load(Path(folder))
    setting, clients = task.setting, list(task.clients.values())
    app = make_client_app(
        create_model(setting.model, setting.vocabulary_size),
        LocalTraining(setting.batch_size),
        setting.client_rate,
        examples_of=lambda context: clients[int(context.node_config["partition-id"])],
    )
    grid, server = GridInProcess(app, len(clients)), STRATEGIES[strategy](task.params, setting)
    arrays, metrics = arrays_from_params(task.params), {}
    for number in range(setting.rounds):
        messages = server.configure_train(number + 1, arrays, ConfigRecord(), grid)
        arrays, metrics = server.aggregate_train(number + 1, grid.send_and_receive(messages))
        save_params(Path(folder) / f"flower_{number}.npz", params_from_arrays(arrays))
    messages = list(server.configure_train(setting.rounds + 1, arrays, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    dropped = None
    if strategy == "ours":
        replies[0].content["arrays"] = ArrayRecord({"bias": Array(np.zeros(3, np.float32))})
        dropped = server.aggregate_train(setting.rounds + 1, replies)[1]["dropped"]
    versions = {name: version(name) for name in ("flwr", "jax", "numpy")}
    json.dump({"versions": versions, "metrics": dict(metrics), "asked": len(messages), "dropped": dropped}, sys.stdout)


def ours(params: Any, setting: Setting) -> FedlmStrategy:
    server = ServerOptimizerConfig("fedadam", epsilon=setting.epsilon)
    return FedlmStrategy(params, server, setting.server_rate, len(setting.sizes))


def private(params: Any, setting: Setting) -> FedlmStrategy:
    assert setting.clip_norm is not None
    rounds, nodes = setting.rounds, len(setting.sizes)
    bound = BoundedParticipation(max_participations=rounds, min_separation=1)
    plan = PrivacyPlan(mechanism="tree", rounds=rounds, noise_multiplier=1e-6, participation=bound)
    aggregation = PrivateAggregation(plan, setting.clip_norm, report_goal=nodes)
    return FedlmStrategy.private(
        params, aggregation, ServerOptimizerConfig("fedavg"), setting.server_rate, cohort_size=nodes
    )


def theirs(params: Any, setting: Setting) -> FedAvg:
    nodes = len(setting.sizes)
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)


STRATEGIES = {"ours": ours, "private": private, "theirs": theirs}


if __name__ == "__main__":
    main(*sys.argv[1:])
