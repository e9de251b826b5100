"""The clients of one split of a token store, memory-mapped."""

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.rounds.client_examples import ClientExamples, ClientsFingerprint, completion_starts, padded_sequences
from fedlm.models.special_tokens import OWN, SpecialTokens
from fedlm.simulations.data.store.format import IMPORT_AGAIN, SplitHeader, schema

_Result = TypeVar("_Result")


class _Columns(NamedTuple):
    """The buffers of one record batch, as views."""

    client_ids: pa.StringArray
    client_offsets: NDArray[np.int32]  # [clients + 1], counts examples
    example_offsets: NDArray[np.int32]  # [examples + 1], counts tokens
    values: NDArray[np.unsignedinteger]  # [tokens]
    prompt_lengths: NDArray[np.int32] | None  # [examples]; None where there are no prompts


class ClientSplit:
    """The clients of one split, numbered from 0 in the order they were written.

    The path is that of an Arrow IPC file with the columns `client_id` and `examples`; the vocabulary's size sets the
    width of the values; `completions` says whether each example is a prompt and what completes it, with the column
    `prompt_lengths`; `item_sequences` that sequences are the last of an example's tokens, and do not end. Raises
    DataError where the file is not such an Arrow file.
    """

    def __init__(
        self,
        path: Path,
        header: SplitHeader,
        *,
        vocabulary_size: int,
        special_tokens: SpecialTokens = OWN,
        completions: bool = False,
        item_sequences: bool = False,
    ) -> None:
        self.path = path
        self.special_tokens = special_tokens
        self.header = header
        self.has_completions = completions
        self.item_sequences = item_sequences
        self._first = np.concatenate([[0], np.cumsum(header.batch_clients, dtype=np.int64)]).tolist()
        self._reader = self._read(lambda: pa.ipc.open_file(pa.memory_map(str(path))))
        if self._reader.schema != schema(vocabulary_size, completions):
            raise self._damaged("found other columns: " + ", ".join(map(str, self._reader.schema)))
        if self._reader.num_record_batches != len(header.batch_clients):
            raise self._damaged(
                f"found {self._reader.num_record_batches} record batches, expected {len(header.batch_clients)}"
            )
        self._columns = lru_cache(maxsize=None)(self._read_columns)

    @property
    def num_clients(self) -> int:
        return self.header.clients

    @cached_property
    def client_ids(self) -> list[str]:
        """The ids of all clients, read on first use."""
        return [id_ for batch in range(self.num_batches) for id_ in self._columns(batch).client_ids.to_pylist()]

    @cached_property
    def num_examples(self) -> NDArray[np.int64]:
        """int64 `[num_clients]`: the number of examples of each client, read from offsets on first use."""
        return _frozen([np.diff(self._columns(batch).client_offsets) for batch in range(self.num_batches)])

    @cached_property
    def num_tokens(self) -> NDArray[np.int64]:
        """int64 `[num_clients]`: the number of tokens of each client, read from offsets on first use."""
        batches = [self._columns(batch) for batch in range(self.num_batches)]
        return _frozen([np.diff(columns.example_offsets[columns.client_offsets]) for columns in batches])

    @property
    def item_lengths(self) -> NDArray[np.int64] | None:
        """Of sequences of items, how many each user's are, int64 `[num_clients]`; None of other examples."""
        return self.num_tokens if self.item_sequences else None

    def client_id(self, index: int) -> str:
        """Return the id of a client; raises IndexError where there is no such client."""
        batch, row = self._locate(index)
        return self._columns(batch).client_ids[row].as_py()

    def client(self, index: int) -> ClientExamples:
        """Return a client's examples as views of the mapped file.

        Raises IndexError where there is no such client, DataError where the file is damaged there.
        """
        batch, row = self._locate(index)
        columns = self._columns(batch)
        first, last = columns.client_offsets[row : row + 2].tolist()
        offsets = columns.example_offsets[first : last + 1]
        prompts = None if columns.prompt_lengths is None else columns.prompt_lengths[first:last]
        return ClientExamples(columns.values[offsets[0] : offsets[-1]], offsets, prompts)

    def sequences(self, index: int, length: int, rows: NDArray[np.integer] | None = None) -> NDArray[np.int32]:
        """Return a client's examples as `padded_sequences` makes them."""
        return padded_sequences(
            self.client(index), length, rows=rows, special_tokens=self.special_tokens, last=self.item_sequences
        )

    def completion_starts(
        self, index: int, length: int, rows: NDArray[np.integer] | None = None
    ) -> NDArray[np.int32] | None:
        """Say where completions begin in the same sequences; None where the store has no prompts."""
        return completion_starts(self.client(index), length, rows, self.item_sequences)

    def fingerprint(self) -> str:
        """Read everything, and make the fingerprint of all clients."""
        fingerprint = ClientsFingerprint()
        for batch in range(self.num_batches):
            columns = self._columns(batch)
            ids, counts = columns.client_ids.to_pylist(), np.diff(columns.client_offsets)
            lengths = np.diff(columns.example_offsets)
            fingerprint.add(ids, counts, lengths, columns.values, prompt_lengths=columns.prompt_lengths)
        return fingerprint.hexdigest()

    def batch_lengths(self, batch: int) -> NDArray[np.int32]:
        """Return int32 `[examples]`: the tokens of every example of one record batch."""
        return np.diff(self._columns(batch).example_offsets)

    def batch_values(self, batch: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens `[tokens]` of one record batch, a view of the mapped file."""
        return self._columns(batch).values

    def batch_prompt_lengths(self, batch: int) -> NDArray[np.int32] | None:
        """Return int32 `[examples]`: the tokens of every prompt of one record batch; None where there are none."""
        return self._columns(batch).prompt_lengths

    @property
    def num_batches(self) -> int:
        return len(self._first) - 1

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_clients:
            raise IndexError(f"client {index} of a split with {self.num_clients} clients")
        batch = bisect_right(self._first, index) - 1
        return batch, index - self._first[batch]

    def _read_columns(self, batch: int) -> _Columns:
        record = self._read(lambda: self._reader.get_batch(batch))
        examples = record.column(1)
        columns = _Columns(
            client_ids=record.column(0),
            client_offsets=_view(examples.offsets),
            example_offsets=_view(examples.values.offsets),
            values=_view(examples.values.values),
            prompt_lengths=_view(record.column(2).values) if self.has_completions else None,
        )
        found = (record.num_rows, columns.client_offsets[-1], columns.example_offsets[-1])
        expected = (self.header.batch_clients[batch], len(columns.example_offsets) - 1, len(columns.values))
        if found != expected:
            raise self._damaged(
                f"record batch {batch} has (clients, examples, tokens) {tuple(map(int, found))} instead of {expected}"
            )
        prompts, lengths = columns.prompt_lengths, np.diff(columns.example_offsets)
        if prompts is not None and (
            len(prompts) != len(lengths) or (len(prompts) and not ((prompts >= 0) & (prompts <= lengths)).all())
        ):
            raise self._damaged(f"record batch {batch} has prompts that are longer than their examples")
        return columns

    def _read(self, action: Callable[[], _Result]) -> _Result:
        try:
            return action()
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"cannot be read ({error})") from error

    def _damaged(self, found: str) -> DataError:
        return DataError(f"{self.path}: {found}, expected the Arrow file of a token store. {IMPORT_AGAIN}")


def _frozen(counts: list[NDArray[np.int32]]) -> NDArray[np.int64]:
    joined = np.concatenate([np.empty(0, np.int64), *counts])
    joined.flags.writeable = False
    return joined


def _view(column: pa.Array) -> NDArray[Any]:
    """View whole numbers in place as `to_numpy` does, which first imports pandas if there is one, for half a second."""
    kind = np.dtype(str(column.type))  # both name them alike
    numbers = np.frombuffer(column.buffers()[1] or b"", kind) if len(column) else np.empty(0, kind)
    return numbers[column.offset : column.offset + len(column)]
