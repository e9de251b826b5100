"""pfl-research: our splits as its data sets; our models come there as the PyTorch modules of `fedlm.interop.torch`.

Local training is then pfl-research's own. It reads a user's examples in the order in which they are stored, since it
does not shuffle.
"""

import itertools
from collections.abc import Callable

import numpy as np
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler

from fedlm.fl_core.rounds.local_sgd import LocalTraining, batch_rows
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.interop.torch import split_tokens
from fedlm.simulations.data.federated_data import Split


def data_for_pfl(split: Split, length: int, sampler: Callable[[], str] | None = None) -> FederatedDataset:
    """Make a `FederatedDataset` of a split, whose users' examples are pairs of inputs and targets.

    Args:
      split: of ours; clients with examples are the users.
      length: tokens that are read of an example.
      sampler: gives the next user's id; users take turns where None.
    """
    clients = {name: client for client, name in enumerate(split.client_ids) if split.num_examples[client]}

    def dataset(name: str) -> Dataset:
        return Dataset(split_tokens(split.sequences(clients[name], length)), user_id=name)

    return FederatedDataset(dataset, sampler or MinimizeReuseUserSampler(list(clients)))


def planned_data(split: Split, length: int, training: LocalTraining, plan: RoundPlan) -> FederatedDataset:
    """Make of a round's plan the cohort's data in the order in which our clients take them; one epoch alone."""
    names, clients = split.client_ids, list(map(int, plan.clients))
    order = itertools.cycle([names[client] for client in clients])
    numbers = {names[client]: client for client in clients}

    def dataset(name: str) -> Dataset:
        sequences = split.sequences(numbers[name], length)
        rows = batch_rows(len(sequences), training, plan.shuffling(numbers[name])).reshape(-1)
        return Dataset(split_tokens(np.asarray(sequences[rows[rows >= 0]])), user_id=name)

    return FederatedDataset(dataset, lambda: next(order))
