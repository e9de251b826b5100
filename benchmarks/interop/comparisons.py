"""The comparisons, one function for each: rounds on both sides from the same task, and how far they come apart."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks.interop.given_noise import RoundsOfGivenTree
from benchmarks.interop.our_rounds import make_task, run_ours
from benchmarks.interop.peer_python import PEERS, ROOT, run_in_peer, run_in_reference
from benchmarks.interop.task import Setting, Task, greatest_difference
from fedlm.fl_core.exact_sums import SAFETY
from fedlm.fl_core.rounds.scores import Scores, evaluate
from fedlm.interop.parameters import Tree, load_params
from fedlm.models.base import Batch
from fedlm.models.registry import create_model

MODELS = ("cifg_tiny", "si_cifg_tiny", "transformer_tiny", "si_transformer_tiny")


TFF_KINDS = {
    "mean": "weighted federated averaging, FedAdam",
    "clipped": "mean of clipped updates",
    "tree": "DP-FTRL: tree aggregation, the same noise",
}


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


def compare_with_tff(kind: str, setting: Setting, folder: Path) -> Scored:
    """Run TensorFlow Federated beside ours in one of `TFF_KINDS`; only means are scored there."""
    task = make_task(setting)
    task.save(folder)
    found = run_in_reference("tff_rounds.py", kind, folder, timeout=550)
    theirs = [load_params(folder / f"tff_{number}.npz") for number in range(setting.rounds)]
    server, averaging = "fedadam" if kind == "mean" else "fedavg", None
    if kind == "tree":
        assert setting.clip_norm is not None
        assert setting.noise_multiplier is not None
        noise = [load_params(folder / f"noise_{number}.npz") for number in range(setting.rounds)]
        averaging = RoundsOfGivenTree(noise, setting.clip_norm, setting.noise_multiplier, len(setting.sizes))
    ours = run_ours(task, server, averaging)
    comparison = compare("TensorFlow Federated", TFF_KINDS[kind], task, ours, theirs, found["versions"])
    return Scored(comparison, score(task, theirs[-1]), found["scores"])


FLOWER_STRATEGIES = {
    "ours": "our strategy and client app, FedAdam",
    "private": "our strategy of DP-FTRL, next to no noise, beside clipped means",
    "theirs": "Flower's FedAvg with our client app",
}


def compare_with_flower(strategy: str, setting: Setting, folder: Path) -> tuple[Comparison, dict[str, Any]]:
    """Run one of `FLOWER_STRATEGIES` over Flower's messages beside our rounds; returns what else it printed, too."""
    task = make_task(setting)
    task.save(folder)
    script = ROOT / "benchmarks" / "interop" / "flower_rounds.py"
    found = json.loads(run_in_peer(PEERS, script, folder, strategy))
    theirs = [load_params(folder / f"flower_{number}.npz") for number in range(setting.rounds)]
    if strategy == "private":
        assert setting.clip_norm is not None
        task = task._replace(setting=dataclasses.replace(setting, clip_norm=setting.clip_norm * SAFETY))
    ours = run_ours(task, "fedadam" if strategy == "ours" else "fedavg")
    return compare("Flower", FLOWER_STRATEGIES[strategy], task, ours, theirs, found["versions"]), found


def flower_setting(strategy: str, model: str, rounds: int) -> Setting:
    """Say what is compared with one of `FLOWER_STRATEGIES`."""
    if strategy == "ours":
        return Setting(model, rounds=rounds)
    return Setting(model, rounds=rounds, server_rate=1.0, clip_norm=0.3 if strategy == "private" else None)


def compare_with_pfl(setting: Setting, folder: Path) -> tuple[Comparison, float]:
    """Run pfl-research on PyTorch modules beside ours; returns the greatest difference of the first logits, too."""
    task = make_task(setting)
    task.save(folder)
    printed = run_in_peer(PEERS, ROOT / "benchmarks" / "interop" / "pfl_rounds.py", folder, timeout=550)
    versions = json.loads(printed.splitlines()[-1])["versions"]
    rows = np.concatenate(list(task.clients.values()))
    logits = create_model(setting.model, setting.vocabulary_size).apply(task.params, jnp.asarray(rows[:, :-1]))
    apart = greatest_difference({"logits": logits}, load_params(folder / "logits.npz"))
    theirs = [load_params(folder / f"pfl_{number}.npz") for number in range(setting.rounds)]
    what = "federated averaging, Adam on the server, PyTorch"
    return compare("pfl-research", what, task, run_ours(task), theirs, versions), apart


def tff_setting(kind: str, model: str, rounds: int) -> Setting:
    """Say what is compared in one of `TFF_KINDS`."""
    if kind == "mean":
        return Setting(model, rounds=rounds)
    noise_multiplier = 0.5 if kind == "tree" else None
    return Setting(model, rounds=rounds, server_rate=1.0, clip_norm=0.3, noise_multiplier=noise_multiplier)


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
