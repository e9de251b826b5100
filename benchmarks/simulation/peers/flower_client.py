"""What each of Flower's actors runs; a module of its own, because Ray sends functions by their names."""

import functools
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.simulation.peers.task import Task, load_task
from benchmarks.simulation.peers.torch_models import create, split_tokens


def client_app(path: str, threads: int) -> ClientApp:
    """Make the app that trains a client.

    Args:
      path: of the task.
      threads: that PyTorch may use.

    Returns:
      The app; a client is known by its partition's number.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task, module, shares = _load(path, threads)
        inputs, targets = shares[int(context.node_config["partition-id"])]
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        _train(module, inputs, targets, task.settings.batch_size, task.settings.learning_rate)
        content: dict[str, Any] = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": len(inputs)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


@functools.cache
def _load(path: str, threads: int) -> tuple[Task, torch.nn.Module, list]:
    """Load the data once in each actor, and make the module that its clients train one after another."""
    torch.set_num_threads(threads)
    task = load_task(path)
    return task, create(task.settings.model, task.params), [split_tokens(rows) for rows in task.clients]


def _train(module: torch.nn.Module, inputs: Any, targets: Any, batch_size: int, learning_rate: float) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
    for rows in torch.randperm(len(inputs)).split(batch_size):
        optimizer.zero_grad()
        module.loss(inputs[rows], targets[rows]).backward()
        optimizer.step()
