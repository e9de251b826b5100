"""What the cohort engine needs of a federated data set: in memory, or in a store on disk."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.models.base import Batch
from fedlm.models.special_tokens import PAD_ID, SpecialTokens

CPU_EVALUATION_BATCH, EVALUATION_BATCH = 16, 256
_LEAST_WIDTH = 8


class FederatedData(Protocol):
    """Clients with their token sequences; `num_examples` is int64 [clients]."""

    num_examples: np.ndarray

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the examples of a client that `rows` [n] name, in this order; all where None.

        int32 [n, length + 1]: `[BOS] w1 .. wk [EOS]`, cut or padded with PAD; a copy where `rows` are given.
        """
        ...


class InMemoryData:
    """Federated data in lists, int32 [examples, length + 1] a client; for tests and for small data of your own."""

    def __init__(self, clients: Sequence[np.ndarray]):
        self._clients = clients
        self.num_examples = np.array([len(client) for client in clients], np.int64)

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        sequences = self._clients[client]
        return sequences if rows is None else sequences[rows]


class ChosenClients:
    """Some clients of a federated data set, int [chosen], numbered anew."""

    def __init__(self, data: FederatedData, clients: np.ndarray):
        self._data, self._clients = data, clients
        self.num_examples = data.num_examples[clients]

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        return self._data.sequences(int(self._clients[client]), rows)


class Split(Protocol):
    """The clients of one split, on disk or in memory, numbered from 0; `num_examples` is int64 [clients]."""

    @property
    def num_examples(self) -> np.ndarray: ...

    @property
    def client_ids(self) -> list[str]:
        """The names of all clients, by index."""

    def sequences(self, client: int, length: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Return examples of a client as `FederatedData.sequences` does, cut or padded to `length + 1`."""

    @property
    def has_completions(self) -> bool:
        """Whether each example is a prompt and what completes it."""

    def completion_starts(self, client: int, length: int, rows: np.ndarray | None = None) -> np.ndarray | None:
        """Say where completions begin in the same sequences, int32 [n]; None where they have no prompts."""

    @property
    def item_lengths(self) -> np.ndarray | None:
        """Where each client is a user with one sequence of items, how many these are, int64 [clients]; None else."""


class DataSet(Protocol):
    """A federated data set, whatever holds it: a `TokenStore` on disk, or a `DataInMemory`."""

    path: Path  # for messages

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def special_tokens(self) -> SpecialTokens: ...

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the vocabulary."""

    @property
    def vocabulary_origin(self) -> VocabularyOrigin:
        """Where the vocabulary comes from, and so whether a guarantee for a model covers it."""

    @property
    def without_users(self) -> bool:
        """Whether its clients are documents, and nobody knows whose."""

    @property
    def contents(self) -> str:
        """A fingerprint of what the data set holds."""

    def training_data(self, check: bool) -> str | None:
        """Return the fingerprint of the training clients' names and tokens, see `ClientsFingerprint`; with `check`,
        having looked at all of them. None where it is not known without."""

    def split(self, name: str) -> Split:
        """Return train, heldout or test."""


class StoredData:
    """One split of a data set, cut to a sequence length."""

    def __init__(self, split: Split, length: int):
        self._split, self._length = split, length
        self.num_examples, self.has_completions = split.num_examples, split.has_completions
        self.item_lengths = split.item_lengths

    @property
    def client_ids(self) -> list[str]:
        """The names of all clients, by index."""
        return self._split.client_ids

    def sequences(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        return self._split.sequences(client, self._length, rows)

    def completion_starts(self, client: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Say where completions begin in the same sequences of a split that has them, int32 [n]."""
        starts = self._split.completion_starts(client, self._length, rows)
        assert starts is not None
        return starts


def refuse_completions(store: DataSet, doing: str) -> None:
    """Refuse prompts and completions, as a ConfigurationError, where all text would be taken alike."""
    if store.split("train").has_completions:
        raise ConfigurationError(
            f"{store.path}: has prompts and completions, and {doing} cannot tell one from the other; give "
            "data that was imported as texts, or train with `fedlm pretrain`"
        )


def open_splits(store: DataSet, names: Iterable[str], length: int) -> dict[str, StoredData]:
    """Open splits of a data set by name, each of which must have examples, or DataError is raised."""
    splits = {name: StoredData(store.split(name), length) for name in names}
    for name, split in splits.items():
        if not split.num_examples.sum():
            raise DataError(f"{store.path}: split {name} has no example; import data with more clients")
    return splits


def evaluation_batches(
    data: FederatedData, length: int, batch_size: int, *, max_examples: int | None = None, own_rows: range | None = None
) -> Iterator[Batch]:
    """Lay examples of all clients out in batches of one shape, the last filled up with rows of weight 0.

    At most `max_examples` are taken, from clients in the order of `evaluation_order`. Only the rows of every batch that
    `own_rows` name are made; other examples are not touched. Sequences of items, most of which are far shorter than the
    longest, are put in order of their lengths, and batches of short ones are no wider than these need.
    """
    clients, item_lengths = _scored_order(data, max_examples), _item_lengths(data)
    ends = np.cumsum(data.num_examples[clients])
    total = int(data.num_examples.sum()) if max_examples is None else min(int(data.num_examples.sum()), max_examples)
    own_rows, width = range(batch_size) if own_rows is None else own_rows, length
    stored = data if isinstance(data, StoredData) and data.has_completions else None
    for start in range(0, total, batch_size):
        first, last = (min(start + row, total) for row in (own_rows.start, own_rows.stop))
        if item_lengths is not None:
            width = _width(int(item_lengths[clients[start : start + batch_size]].max()), length)
        tokens, filled = np.full((len(own_rows), width + 1), PAD_ID, np.int32), 0
        starts = np.ones(len(own_rows), np.int32) if stored else None
        for client, wanted in _rows(data, clients, ends, first=first, last=last):
            found = data.sequences(client, wanted)
            tokens[filled : filled + len(found)] = found[:, : width + 1]
            if stored is not None and starts is not None:
                starts[filled : filled + len(found)] = stored.completion_starts(client, wanted)
            filled += len(found)
        weight = (np.arange(len(tokens)) < filled).astype(np.float32)
        yield Batch(tokens, weight, starts)  # type: ignore[arg-type]


def _rows(
    data: FederatedData, clients: np.ndarray, ends: np.ndarray, *, first: int, last: int
) -> Iterator[tuple[int, np.ndarray | None]]:
    """Name examples `first` to `last` of clients laid end to end, each of which ends where `ends` says: a client, and
    some of its rows, or None for all."""
    place = int(np.searchsorted(ends, first, side="right"))
    while first < last:
        end, size = int(ends[place]), int(data.num_examples[clients[place]])
        until = min(last, end)
        rows = np.arange(first, until) - (end - size)
        yield int(clients[place]), None if len(rows) == size else rows
        first, place = until, place + 1


def device_batches(
    data: FederatedData,
    length: int,
    max_examples: int | None = None,
    transform: Callable[[int, range, Batch], Any] = lambda number, rows, batch: batch,
) -> Iterator[Any]:
    """Lay examples of all clients out in batches that are spread over the devices of all processes.

    Each process makes the rows of its own devices. `transform` says what a model reads of a batch: it maps the batch's
    number, the rows of it that this process makes, and these.
    """
    rows_over_devices = NamedSharding(Mesh(np.array(jax.devices()), "devices"), PartitionSpec("devices"))
    rows, devices = rows_per_device(), jax.devices()
    first = devices.index(jax.local_devices()[0])
    own_rows = range(first * rows, (first + jax.local_device_count()) * rows)
    batches = evaluation_batches(data, length, rows * len(devices), max_examples=max_examples, own_rows=own_rows)
    for number, batch in enumerate(batches):
        yield jax.make_array_from_process_local_data(rows_over_devices, transform(number, own_rows, batch))


def rows_per_device() -> int:
    """Return how many rows are scored together on each device: few on a CPU, so that their logits stay in its cache."""
    return CPU_EVALUATION_BATCH if jax.local_devices()[0].platform == "cpu" else EVALUATION_BATCH


def evaluation_owners(data: FederatedData, max_examples: int | None = None) -> np.ndarray:
    """Return int64 [examples], the client of every row of `evaluation_batches`, without those that fill up."""
    clients = _scored_order(data, max_examples)
    return np.repeat(clients, data.num_examples[clients])[:max_examples]


def _scored_order(data: FederatedData, max_examples: int | None) -> np.ndarray:
    """Return int64 [clients], those of `evaluation_batches` in their order."""
    order, lengths = evaluation_order(data), _item_lengths(data)
    if lengths is None:
        return order
    chosen = order[:max_examples]  # of one example each
    return chosen[np.argsort(lengths[chosen], kind="stable")]


def _item_lengths(data: FederatedData) -> np.ndarray | None:
    return data.item_lengths if isinstance(data, StoredData) else None


def _width(items: int, length: int) -> int:
    """Round up to one of few widths, for each of which a program is compiled."""
    return min(length, max(_LEAST_WIDTH, 1 << (items - 1).bit_length()))


def evaluation_order(data: FederatedData) -> np.ndarray:
    """Return int64 [clients], the order in which clients are scored: random, but always the same."""
    return np.random.default_rng(0).permutation(len(data.num_examples))
