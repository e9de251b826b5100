"""The token store: the token sequences of federated clients on disk, memory-mapped.

A store is a directory: `store.json` (the header), `tokenizer.json`, and `train.arrow`, `heldout.arrow` and
`test.arrow` in the Arrow IPC file format, one row a client. Opening reads the header only; a client's tokens
are views of the mapped file, read by the operating system when touched and dropped by it when memory is short.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE, VocabularyOrigin
from fedlm.fl_core.rounds.client_examples import ClientExamples, ClientsFingerprint, completion_starts, padded_sequences
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.shown import in_a_line, in_a_table
from fedlm.models.special_tokens import OWN, SpecialTokens
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.format import (
    IMPORT_AGAIN,
    SplitHeader,
    StoreHeader,
    read_header,
    schema,
    split_file,
)
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

_Result = TypeVar("_Result")


class TokenStore:
    """A token store opened for reading.

    Example:
      >>> import tempfile
      >>> from fedlm.simulations.data.client_text import ClientText
      >>> from fedlm.simulations.data.sources.in_memory import InMemoryText
      >>> source = InMemoryText([ClientText(f"user {n}", ["the cat sat", "a dog ran"]) for n in range(30)])
      >>> folder = Path(tempfile.mkdtemp()) / "store"
      >>> import fedlm
      >>> _ = fedlm.import_text("made up", source, folder, fedlm.ImportSettings(vocabulary_size=40), workers=1)
      >>> store = TokenStore.open(folder)
      >>> store.tokenizer.decode(store.split("train").client(0).example(0))
      'the cat sat'
    """

    def __init__(self, path: Path, header: StoreHeader, tokenizer: Tokenizer) -> None:
        self.path = path
        self.header = header
        self.tokenizer = tokenizer
        self._splits: dict[str, ClientSplit] = {}

    def __repr__(self) -> str:
        clients = {name: split.clients for name, split in self.header.splits.items()}
        return in_a_line(self, path=str(self.path), vocabulary_size=self.vocabulary_size, clients=clients)

    def _repr_html_(self) -> str:
        rows = [(name, one.clients, one.examples, one.tokens) for name, one in self.header.splits.items()]
        titles = (f"{self.path}, a vocabulary of {self.vocabulary_size:,}", "clients", "examples", "tokens")
        return in_a_table(rows, titles)

    @classmethod
    @checked_arguments
    def open(cls, path: StrPath) -> Self:
        """Open a store without reading its data.

        Raises DataError where a file is missing, truncated or of another format version, or the tokenizer is not the
        one that the store was made with.
        """
        path = Path(path)
        header = read_header(path)
        for name, split in header.splits.items():
            file = path / split_file(name)
            size = file.stat().st_size if file.is_file() else None
            if size != split.bytes:
                found = "there is no such file" if size is None else f"found {size} bytes"
                raise DataError(f"{file}: {found}, expected {split.bytes} bytes. {IMPORT_AGAIN}")
        tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
        if tokenizer.fingerprint != header.tokenizer_fingerprint:
            raise DataError(
                f"{path / TOKENIZER_FILE}: found a tokenizer with fingerprint {tokenizer.fingerprint[:16]}, the "
                f"store was made with {header.tokenizer_fingerprint[:16]}. Put the store's own tokenizer.json "
                "back, or import the data again."
            )
        return cls(path, header, tokenizer)

    @property
    def source(self) -> str:
        return self.header.source

    @property
    def vocabulary_size(self) -> int:
        return self.header.vocabulary_size

    @property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens of the store's tokenizer."""
        return self.tokenizer.special_tokens

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the store's tokenizer."""
        return self.header.tokenizer_fingerprint

    @property
    def vocabulary_origin(self) -> VocabularyOrigin:
        """Where the vocabulary comes from, and so whether a guarantee for a model covers it."""
        return self.header.vocabulary_origin

    @property
    def has_completions(self) -> bool:
        """Whether each example is a prompt and what completes it."""
        return self.header.completions

    @property
    def item_sequences(self) -> bool:
        """Whether each client is a user with one sequence of items, as recommendation has it."""
        return self.header.item_sequences

    @property
    def without_users(self) -> bool:
        """Whether nobody is named for its texts, each of which is a client of its own."""
        return self.header.without_users

    @property
    def contents(self) -> str:
        """A fingerprint of what the header says of the data: its tokenizer, and counts and sizes of its splits."""
        splits = {name: asdict(split) for name, split in self.header.splits.items()}
        for split in splits.values():
            del split["sha256"]  # `training_data` has it
        return hashlib.sha256(json.dumps([self.fingerprint, splits]).encode()).hexdigest()

    def training_data(self, check: bool) -> str:
        """Return the fingerprint of the training clients' names and tokens.

        Args:
          check: read all of them, to notice what was changed since the import.

        Raises DataError where they were changed.
        """
        split = self.split("train")
        if check and (found := split.fingerprint()) != split.header.sha256:
            raise DataError(
                f"{split.path}: its clients or their text are not what was imported (fingerprint {found[:16]}, "
                f"expected {split.header.sha256[:16]}). {IMPORT_AGAIN}"
            )
        return split.header.sha256

    def split(self, name: str) -> "ClientSplit":
        """Return train, heldout or test, the same object on every call; raises DataError where its file is damaged."""
        if name not in self.header.splits:
            raise DataError(f"{self.path}: has no split {name!r}. Choose one of {', '.join(SPLITS)}.")
        if name not in self._splits:
            self._splits[name] = ClientSplit(
                self.path / split_file(name),
                self.header.splits[name],
                vocabulary_size=self.vocabulary_size,
                special_tokens=self.special_tokens,
                completions=self.header.has_prompts(name),
                item_sequences=self.item_sequences,
            )
        return self._splits[name]


def refuse_item_sequences(store: TokenStore, doing: str) -> None:
    """Refuse sequences of items, as a ConfigurationError, where they would be taken for texts."""
    if store.item_sequences:
        raise ConfigurationError(
            f"{store.path}: has sequences of items, which {doing} would take for texts; give data that was imported as "
            "texts"
        )


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
