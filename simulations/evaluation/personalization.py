"""Personalization: what a client gains when the global model goes on training on its own text.

Each client's examples are cut in two halves, in the order in which they are stored: the model trains on the first,
just as in a round, and is scored on the second before and after.
"""

from typing import NamedTuple

import jax
import numpy as np

from fedlm.fl_core.client_algorithms.interface import Broadcast
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.randomness import host_rng
from fedlm.fl_core.rounds.local_sgd import LocalTraining, train_client
from fedlm.fl_core.rounds.scores import ClientSums, example_sums, scores_from_totals, scores_of_each
from fedlm.models.base import Model, Params
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.losses import ExampleSums
from fedlm.models.precision import precision_scope
from fedlm.simulations.data.federated_data import (
    InMemoryData,
    evaluation_batches,
    refuse_completions,
    rows_per_device,
)
from fedlm.simulations.data.store.token_store import refuse_item_sequences
from fedlm.simulations.evaluation.client_evaluation import (
    Evaluation,
    Observer,
    choose_clients,
    describe_evaluation,
    describe_scores,
)
from fedlm.simulations.evaluation.client_scores import client_columns
from fedlm.simulations.evaluation.trained_models import TrainedModel

_FEWEST_EXAMPLES = 2


class _Gain(NamedTuple):
    """Sums over the second half of a client's examples, float64 [sums], and how many examples each half has."""

    before: np.ndarray
    after: np.ndarray
    trained_on: int
    scored_on: int


def personalize(
    run: TrainedModel,
    training: LocalTraining,
    split: str,
    client_learning_rate: float | None = None,
    *,
    max_clients: int | None = None,
    observe: Observer = lambda done, total: None,
) -> Evaluation:
    """Train the run's model on each client of a split alone, and score what that does to it. Clients with a single
    example, which cannot be cut in two, are left out; at most so many take part, at random but always the same. Raises
    DataError where the split has no client with two examples."""
    if jax.tree_util.tree_leaves(training.algorithm.init_server(run.params)):
        raise ConfigurationError(
            f"the client algorithm {type(training.algorithm).__name__} needs what the server remembers from round to "
            "round, and a client alone has no such server"
        )
    refuse_completions(run.store, "personalization")
    refuse_item_sequences(run.store, "personalization")
    rate = run.settings["client_learning_rate"] if client_learning_rate is None else client_learning_rate
    data = run.split(split)
    clients = choose_clients(data, split, _FEWEST_EXAMPLES, max_clients)
    gains = []
    trained = with_dropout(run.model, run.settings.get("dropout", 0.0))
    with precision_scope(run.precision):
        params = jax.device_put(run.params)
        for client in map(int, clients):
            gains.append(
                _gain(run, trained, training, params, sequences=data.sequences(client), client=client, rate=rate)
            )
            observe(len(gains), len(clients))
    before, after = (_client_sums(clients, gains, side) for side in ("before", "after"))
    summary = (
        describe_evaluation(run, split, data, before)
        | {"client_learning_rate": rate}
        | _describe(before, "")
        | _describe(after, "personalized_")
        | {"share_of_clients_better": share_better(before, after)}
    )
    columns = client_columns(before, data.client_ids) | {"training_examples": [gain.trained_on for gain in gains]}
    columns |= {f"personalized_{name}": values for name, values in scores_of_each(after.sums).items()}
    return Evaluation(summary, columns)


def share_better(before: ClientSums, after: ClientSums) -> float | None:
    """Compute the share of clients whose perplexity fell. Returns the share of the clients with targets to score; one
    whose training diverged did not get better. None without any."""
    old, new = (scores_of_each(found.sums)["perplexity"] for found in (before, after))
    scored = ~np.isnan(old)
    return float(np.mean((new < old)[scored])) if scored.any() else None


def _gain(
    run: TrainedModel,
    model: Model,
    training: LocalTraining,
    params: Params,
    *,
    sequences: np.ndarray,
    client: int,
    rate: float,
) -> _Gain:
    first, second = np.split(sequences, [len(sequences) // 2])
    rng, dropout_rng = (host_rng(run.settings["seed"], what, client) for what in ("personalize", "personal dropout"))
    trained, _ = train_client(
        model, Broadcast(params), first, training, rng=rng, learning_rate=rate, dropout_rng=dropout_rng
    )
    before, after = (_total(run, these, second) for these in (params, trained.params))
    return _Gain(before, after, len(first), len(second))


def _total(run: TrainedModel, params: Params, sequences: np.ndarray) -> np.ndarray:
    batches = evaluation_batches(InMemoryData([sequences]), run.settings["length"], rows_per_device())
    return np.array([np.sum(column, dtype=np.float64) for column in example_sums(run.model, params, batches)])


def _client_sums(clients: np.ndarray, gains: list[_Gain], side: str) -> ClientSums:
    sums = np.stack([getattr(gain, side) for gain in gains], axis=1)
    return ClientSums(clients, np.array([gain.scored_on for gain in gains]), ExampleSums(*sums))


def _describe(found: ClientSums, prefix: str) -> dict:
    totals = ExampleSums(*(np.sum(column) for column in found.sums))
    return describe_scores(scores_from_totals(totals), found, prefix)
