"""What every contestant is given: clients, first parameters, an evaluation batch and the settings, as one .npz file.

Only NumPy is needed here, because the environments of the contestants have nothing else in common.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlm.interop.parameters import Tree, flatten, unflatten


@dataclass(frozen=True)
class Settings:
    """What is trained, and how.

    Attributes:
      model: its name.
      vocabulary_size: number of token ids.
      batch_size: sequences of a local step; a client's last may have fewer.
      learning_rate: of the clients' SGD.
      cores: how many CPU cores a contestant may use.
    """

    model: str
    vocabulary_size: int
    batch_size: int
    learning_rate: float
    cores: int


class Task(NamedTuple):
    """A round to be run.

    Attributes:
      settings: what is trained, and how.
      clients: int32 [examples, length + 1] each. There is no padding: every token but the first is a target.
      params: where each round starts.
      evaluation: int32 [examples, length + 1], on which the averaged model is scored.
    """

    settings: Settings
    clients: list[np.ndarray]
    params: Tree
    evaluation: np.ndarray

    @property
    def steps(self) -> int:
        """The local steps of a round."""
        return sum(-(-len(client) // self.settings.batch_size) for client in self.clients)


def save_task(path: Path, task: Task) -> None:
    """Write a task.

    Args:
      path: an .npz file.
      task: what it will hold.
    """
    arrays = {f"params/{name}": leaf for name, leaf in flatten(task.params).items()}
    arrays["tokens"] = np.concatenate(task.clients)
    arrays["sizes"] = np.array([len(client) for client in task.clients])
    arrays["evaluation"] = task.evaluation
    arrays["settings"] = np.array(json.dumps(asdict(task.settings)))
    np.savez(path, **arrays)


def load_task(path: str | Path) -> Task:
    """Read a task.

    Args:
      path: of `save_task`.

    Returns:
      The task.
    """
    with np.load(path) as file:
        arrays = dict(file)
    clients = np.split(arrays["tokens"], np.cumsum(arrays["sizes"])[:-1])
    leaves = {name.removeprefix("params/"): leaf for name, leaf in arrays.items() if name.startswith("params/")}
    settings = Settings(**json.loads(str(arrays["settings"])))
    return Task(settings, clients, unflatten(leaves), arrays["evaluation"])
