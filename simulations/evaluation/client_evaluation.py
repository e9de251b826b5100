"""Scoring the clients of a split with the parameters of a run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.rounds.scores import DEFINITIONS, ClientSums, Scores, evaluate_clients
from fedlm.fl_core.runs.files.metrics_log import finite_or_none
from fedlm.fl_core.runs.outcome import stated_privacy
from fedlm.models.base import Batch
from fedlm.models.precision import precision_scope
from fedlm.simulations.data.federated_data import (
    ChosenClients,
    StoredData,
    device_batches,
    evaluation_order,
    evaluation_owners,
)
from fedlm.simulations.evaluation.client_scores import client_columns, describe_clients, write_table
from fedlm.simulations.evaluation.trained_models import NOT_COVERED, TrainedModel

Observer = Callable[[int, int], None]
"""Called with how much has been done, and how much there is in all."""


class Evaluation(NamedTuple):
    """What an evaluation found."""

    summary: dict[str, Any]
    columns: dict[str, Any]  # of the table with a row a client


def evaluate_split(
    run: TrainedModel, split: str, max_clients: int | None = None, observe: Observer = lambda done, total: None
) -> Evaluation:
    """Score the clients of a split as they are, or only so many of them, at random but always the same. Raises
    DataError where the split has no client with an example."""
    everyone = run.split(split)
    chosen = choose_clients(everyone, split, 1, max_clients)
    data = ChosenClients(everyone, chosen)
    batches = _observed(device_batches(data, run.settings["length"]), int(data.num_examples.sum()), observe)
    with precision_scope(run.precision):
        scores, found = evaluate_clients(run.model, run.params, batches, evaluation_owners(data))
    found = found._replace(clients=chosen[found.clients])
    summary = describe_evaluation(run, split, everyone, found) | describe_scores(scores, found)
    return Evaluation(summary, client_columns(found, everyone.client_ids))


def choose_clients(data: StoredData, split: str, least_examples: int, max_clients: int | None) -> np.ndarray:
    """Choose the clients to score, or at most so many of them, at random but always the same: int64 [chosen],
    ascending. Raises DataError where there is none."""
    order = evaluation_order(data)
    chosen = order[data.num_examples[order] >= least_examples][:max_clients]
    if not len(chosen):
        raise DataError(f"split {split}: has no client with {least_examples} or more examples; choose another split")
    return np.sort(chosen)


def describe_evaluation(run: TrainedModel, split: str, data: StoredData, found: ClientSums) -> dict[str, Any]:
    """Say what was evaluated."""
    return {
        "split": split,
        "model": run.settings["model"],
        "rounds": run.steps,
        "clients_scored": len(found.clients),
        "clients_in_split": len(data.num_examples),
        "examples": int(found.examples.sum()),
        "metrics": DEFINITIONS,
        "experiment": run.settings,
    }


def describe_scores(scores: Scores, found: ClientSums, prefix: str = "") -> dict[str, Any]:
    """Name scores for a JSON record. Returns `scores`, and in `clients` how they are spread over clients."""
    together = {name: finite_or_none(value) for name, value in scores._asdict().items()}
    return {f"{prefix}scores": together, f"{prefix}clients": describe_clients(found)}


def write_evaluation(directory: Path, found: Evaluation, max_clients: int | None = None) -> tuple[Path, dict[str, Any]]:
    """Write `evaluation_SPLIT.json` and, with a row a client, `evaluation_SPLIT.parquet` into a run's folder; or
    `personalization_SPLIT.*`. Of at most so many clients, or of items that were ranked in another way than by default,
    these are others, such as `evaluation_SPLIT_N_clients.*`, so that no evaluation of another kind is lost. Returns the
    JSON's path and content, which says what the run states of its privacy, too.
    """
    kind = "personalization" if "personalized_scores" in found.summary else "evaluation"
    part = "" if max_clients is None else f"_{max_clients}_clients"
    path = directory / f"{kind}_{found.summary['split']}{part}{_of_ranking(found.summary.get('ranking'))}.json"
    record = found.summary | {"privacy": stated_privacy(directory), "privacy_of_these_numbers": NOT_COVERED}
    write_table(path.with_suffix(".parquet"), found.columns)
    write_atomically(path, json_text(record, indent=2) + "\n")
    return path, record


def _of_ranking(ranking: dict[str, Any] | None) -> str:
    """Name what is ranked in another way than by default: all items but those of the history."""
    if ranking is None:
        return ""
    negatives = "" if ranking["sampled_negatives"] is None else f"_{ranking['sampled_negatives']}_negatives"
    return negatives + ("_keep_history" if ranking["keep_history"] else "")


def _observed(batches: Iterator[Batch], examples: int, observe: Observer) -> Iterator[Batch]:
    done = 0
    for batch in batches:
        yield batch
        done = min(done + len(batch.weight), examples)
        observe(done, examples)
