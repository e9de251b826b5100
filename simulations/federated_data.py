"""What the cohort engine needs of a federated data set: in memory, or in a store on disk."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fl_core.local_sgd import gather_batch
from models.base import Batch
from simulations.datasets.store import ClientSplit, padded_sequences

CPU_EVALUATION_BATCH, EVALUATION_BATCH = 16, 256


class FederatedData(Protocol):
    """Clients with their token sequences.

    Attributes:
      num_examples: int64 [clients].
    """

    num_examples: np.ndarray

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Fetch a client's examples.

        Args:
          client: its index.
          rows: int [n], the examples to fetch, in this order; all where None.

        Returns:
          int32 [n, length + 1]: `[BOS] w1 .. wk [EOS]`, cut or padded with PAD; a copy where `rows` are given.
        """
        ...


class InMemoryData:
    """Federated data held in lists; for tests and for data of your own that is small."""

    def __init__(self, clients: Sequence[np.ndarray]):
        """Keep the clients' sequences.

        Args:
          clients: int32 [examples, length + 1] each.
        """
        self._clients = clients
        self.num_examples = np.array([len(client) for client in clients], np.int64)

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        """See `FederatedData.sequences`."""
        sequences = self._clients[client]
        return sequences if rows is None else sequences[rows]


class ChosenClients:
    """Some clients of a federated data set, numbered anew."""

    def __init__(self, data: FederatedData, clients: np.ndarray):
        """Bind the data to the choice.

        Args:
          data: all clients.
          clients: int [chosen], indices of those chosen.
        """
        self._data, self._clients = data, clients
        self.num_examples = data.num_examples[clients]

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        """See `FederatedData.sequences`."""
        return self._data.sequences(int(self._clients[client]), rows)


class StoredData:
    """One split of a store on disk, cut to a sequence length."""

    def __init__(self, split: ClientSplit, length: int):
        """Bind a split to a length.

        Args:
          split: of a `TokenStore`.
          length: target tokens of a sequence.
        """
        self._split, self._length = split, length
        self.num_examples = split.num_examples

    @property
    def client_ids(self) -> list[str]:
        """The names of all clients, by index."""
        return self._split.client_ids

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        """See `FederatedData.sequences`."""
        return padded_sequences(self._split.client(client), self._length, rows)


def evaluation_batches(
    data: FederatedData, length: int, batch_size: int, max_examples: int | None = None
) -> Iterator[Batch]:
    """Lay examples of all clients out in batches of one shape.

    Args:
      data: the clients.
      length: target tokens of a sequence.
      batch_size: rows of a batch; the last batch is filled up with rows of weight 0.
      max_examples: take only so many examples, from clients in an order that is random but always the
        same; None takes all.

    Yields:
      The batches, as NumPy arrays.
    """
    clients = evaluation_order(data)
    left = int(data.num_examples.sum()) if max_examples is None else max_examples
    pending = np.empty((0, length + 1), np.int32)
    for client in clients:
        if left <= 0:
            break
        sequences = data.sequences(int(client))[:left]
        left -= len(sequences)
        pending = np.concatenate([pending, sequences])
        while len(pending) >= batch_size:
            yield _full_batch(pending[:batch_size], batch_size)
            pending = pending[batch_size:]
    if len(pending):
        yield _full_batch(pending, batch_size)


def device_batches(data: FederatedData, length: int, max_examples: int | None = None) -> Iterator[Batch]:
    """Lay examples of all clients out in batches that are spread over the local devices.

    Args:
      data: the clients.
      length: target tokens of a sequence.
      max_examples: see `evaluation_batches`.

    Yields:
      The batches, on the devices.
    """
    devices = jax.local_devices()
    rows_over_devices = NamedSharding(Mesh(np.array(devices), "devices"), PartitionSpec("devices"))
    for batch in evaluation_batches(data, length, rows_per_device() * len(devices), max_examples):
        yield jax.device_put(batch, rows_over_devices)


def rows_per_device() -> int:
    """Say how many rows are scored together on each device.

    Returns:
      Few on a CPU, so that their logits stay in its cache.
    """
    return CPU_EVALUATION_BATCH if jax.local_devices()[0].platform == "cpu" else EVALUATION_BATCH


def evaluation_owners(data: FederatedData, max_examples: int | None = None) -> np.ndarray:
    """Say whose the rows of `evaluation_batches` are, without touching an example.

    Args:
      data: the clients.
      max_examples: as there.

    Returns:
      int64 [examples]: the client of every row, in order; the rows that fill up the last batch are left out.
    """
    clients = evaluation_order(data)
    return np.repeat(clients, data.num_examples[clients])[:max_examples]


def evaluation_order(data: FederatedData) -> np.ndarray:
    """Put clients into the order in which they are scored: random, but always the same.

    Args:
      data: the clients.

    Returns:
      int64 [clients], their indices.
    """
    return np.random.default_rng(0).permutation(len(data.num_examples))


def _full_batch(sequences: np.ndarray, batch_size: int) -> Batch:
    rows = np.where(np.arange(batch_size) < len(sequences), np.arange(batch_size), -1)
    return Batch(*gather_batch(sequences, rows))  # type: ignore[arg-type]
