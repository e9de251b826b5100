"""The comparisons, one function for each: rounds on both sides from the same task, and how far they come apart."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks.interop.our_rounds import make_task, run_ours
from benchmarks.interop.peer_python import run_in_reference
from benchmarks.interop.task import Setting, Task, greatest_difference
from fedlm.fl_core.scores import Scores, evaluate
from fedlm.interop.parameters import Tree, load_params
from fedlm.models.base import Batch
from fedlm.models.registry import create_model

MODELS = ("cifg_tiny", "si_cifg_tiny", "transformer_tiny", "si_transformer_tiny")


class Comparison(NamedTuple):
    """What came of one.

    Attributes:
      peer: the framework.
      what: was compared.
      model: its name.
      differences: the greatest difference of a parameter after each round.
      moved: by how much a parameter moved in a round, at most.
      versions: of the peer and what it stands on.
    """

    peer: str
    what: str
    model: str
    differences: list[float]
    moved: float
    versions: dict[str, str]


class Scored(NamedTuple):
    """A comparison of rounds, and the scores of the last parameters on both sides."""

    comparison: Comparison
    ours: Scores
    theirs: dict[str, float]


def compare_with_fedjax(setting: Setting, folder: Path) -> Scored:
    """Run FedJAX's federated averaging with FedAdam beside ours."""
    task = make_task(setting)
    task.save(folder)
    found = run_in_reference("fedjax_rounds.py", folder)
    theirs = [load_params(folder / f"fedjax_{number}.npz") for number in range(setting.rounds)]
    comparison = compare("FedJAX", "federated averaging, FedAdam", task, run_ours(task), theirs, found["versions"])
    return Scored(comparison, score(task, theirs[-1]), found["scores"])


def compare(
    peer: str, what: str, task: Task, ours: Iterable[Tree], theirs: Iterable[Tree], versions: dict[str, str]
) -> Comparison:
    """Compare parameters round by round."""
    before, differences, moved = task.params, [], 0.0
    for our, their in zip(ours, theirs, strict=True):
        differences.append(greatest_difference(our, their))
        moved = max(moved, greatest_difference(our, before))
        before = our
    return Comparison(peer, what, task.setting.model, differences, moved, versions)


def score(task: Task, params: Tree) -> Scores:
    """Score parameters on all examples of a task with our own evaluation."""
    rows = np.concatenate(list(task.clients.values()))
    model = create_model(task.setting.model, task.setting.vocabulary_size)
    return evaluate(model, params, [Batch(jnp.asarray(rows), jnp.ones(len(rows)))])


def describe(comparison: Comparison) -> dict[str, Any]:
    """Make a record of a comparison."""
    return comparison._asdict() | {"greatest": max(comparison.differences)}
