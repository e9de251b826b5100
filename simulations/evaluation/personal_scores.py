"""Scores of people who took part in training, with the layers that they have kept to themselves."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fedlm.fl_core.rounds.scores import scores_from_totals
from fedlm.fl_core.runs.round_rows import named_scores
from fedlm.models.base import Batch
from fedlm.models.losses import ExampleSums
from fedlm.simulations.data.federated_data import (
    ChosenClients,
    StoredData,
    evaluation_batches,
    evaluation_order,
    rows_per_device,
)

NEW_PEOPLE = "new people, who have kept nothing yet; personal_ scores are of people with what they kept"
"""What a run says of its other scores, if its clients keep something to themselves."""

Score = Callable[[int, Iterable[Batch]], ExampleSums | None]
"""From a client of training and examples of the same person to the sums of each; None where they kept nothing."""


class People(NamedTuple):
    """Those of a split who are clients of training too."""

    split: str
    data: StoredData
    places: np.ndarray  # int64 [people], in the split
    clients: np.ndarray  # int64 [people], in training


def people_of(split: str, data: StoredData, train_ids: list[str], max_examples: int | None) -> People:
    """Find the people of a split, with about so many examples, who are clients of training."""
    clients = {name: client for client, name in enumerate(train_ids)}
    names, order = data.client_ids, evaluation_order(data)
    before = np.cumsum(data.num_examples[order]) - data.num_examples[order]
    scored = order if max_examples is None else order[before < max_examples]
    places = [place for place in scored.tolist() if names[place] in clients and data.num_examples[place]]
    numbers = [clients[names[place]] for place in places]
    return People(split, data, np.array(places, np.int64), np.array(numbers, np.int64))


def personal_scores(people: People, length: int, score: Score) -> dict[str, Any]:
    """Score all examples of those who have kept anything, each with that, in sequences of so many target tokens.

    Returns:
      Numbers by name, which begin with `personal_` and the split: scores, and how many people they are of. Nothing
      where nobody has kept anything.
    """
    totals, scored = np.zeros(len(ExampleSums._fields)), 0
    for place, client in zip(people.places, people.clients.tolist(), strict=True):
        sums = score(
            client, evaluation_batches(ChosenClients(people.data, np.array([place])), length, rows_per_device())
        )
        if sums is not None:
            totals += [np.sum(column, dtype=np.float64) for column in sums]
            scored += 1
    if not scored:
        return {}
    name = f"personal_{people.split}"
    return named_scores(scores_from_totals(ExampleSums(*totals)), name) | {f"{name}_clients": scored}
