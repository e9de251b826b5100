"""Scores of many clients: how they are spread, and a table with a row a client."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.rounds.scores import ClientSums, scores_of_each
from fedlm.fl_core.runs.files.metrics_log import finite_or_none

SPREAD = ("mean", "p10", "median", "p90")


def spread(values: np.ndarray) -> dict[str, Any]:
    """Describe how a score, float [clients], is spread over clients, each of which counts the same: `mean`, the
    percentiles `p10`, `median`, `p90`, and the `count` of clients that they are of, which leaves out NaN; None for a
    number that is not finite."""
    scored = values[~np.isnan(values)]
    numbers = [float("nan")] * len(SPREAD)
    if len(scored):
        # A model that has diverged gives infinite perplexities.
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = [float(np.mean(scored)), *map(float, np.percentile(scored, (10, 50, 90)))]
    return {name: finite_or_none(number) for name, number in zip(SPREAD, numbers, strict=True)} | {"count": len(scored)}


def describe_clients(found: ClientSums) -> dict[str, Any]:
    """Describe how scores are spread over clients: `spread` of perplexity, both accuracies and the number of tokens."""
    scores = scores_of_each(found.sums)
    del scores["loss"]
    return {name: spread(values) for name, values in scores.items()} | {"tokens": spread(np.asarray(found.sums.tokens))}


def client_columns(found: ClientSums, client_ids: list[str]) -> dict[str, Any]:
    """Make the columns of a table with a row a client; its tokens are targets that are not PAD."""
    return {
        "client_id": [client_ids[client] for client in found.clients],
        "examples": found.examples,
        "tokens": np.asarray(found.sums.tokens).astype(np.int64),
        **scores_of_each(found.sums),
    }


def write_table(path: Path, columns: dict[str, Any]) -> None:
    """Write a Parquet file that is whole or not there."""
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    write_atomically(path, buffer.getvalue())
