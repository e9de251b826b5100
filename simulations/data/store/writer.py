"""Writing a token store: bounded memory, and whole or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from numpy.typing import ArrayLike

from fedlm.fedlm_client.files import sync_to_disk
from fedlm.fl_core.atomic_files import disk_errors, move_into_place
from fedlm.fl_core.errors import DataError, setting
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE, UNKNOWN, VocabularyOrigin
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.client_split import ClientSplit
from fedlm.simulations.data.store.format import HEADER_FILE, StoreHeader, schema, split_file, write_header
from fedlm.simulations.data.store.split_writer import BATCH_BYTES, BATCH_CLIENTS, SplitWriter
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

_SPLIT_SETS = {frozenset(some): frozenset(some) for size in range(4) for some in combinations(SPLITS, size)}
"""Every set of splits once, so that millions of clients share them."""


class StoreWriter:
    """Writes a token store as a context manager.

    The store grows in a temporary directory beside its destination, is synced to disk and renamed into place when the
    block ends. When the block raises, the temporary directory is removed; when the process dies, the destination is as
    it was. Parameters, JSON-able, and where the vocabulary comes from are kept in the store's header. A record batch is
    closed when it has `batch_clients` clients or `batch_bytes` bytes of tokens. With `completions`, each example is a
    prompt and what completes it. With `item_sequences`, each client is a user with one sequence of items, and in all
    splits: those of heldout and test are a history, and the item after it.

    Raises DataError where there is something at `path` that may not be replaced, or a vocabulary that was called public
    was made of the store's own training text, DiskError where the disk refuses.
    """

    def __init__(
        self,
        path: Path | str,
        source: str,
        tokenizer: Tokenizer,
        *,
        parameters: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        batch_clients: int = BATCH_CLIENTS,
        batch_bytes: int = BATCH_BYTES,
        vocabulary_origin: VocabularyOrigin = UNKNOWN,
        completions: bool = False,
        without_users: bool = False,
        item_sequences: bool = False,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self._tokenizer = tokenizer
        # Completed when the store is; until then it says what splits have.
        self._header = StoreHeader(
            source,
            tokenizer.vocabulary_size,
            tokenizer.fingerprint,
            {},
            parameters=dict(parameters or {}),
            vocabulary_origin=vocabulary_origin,
            completions=completions,
            without_users=without_users,
            item_sequences=item_sequences,
        )
        self._overwrite = overwrite
        self._bounds = (batch_clients, batch_bytes)
        self._skipped = SkippedCounts()
        self._client_ids: dict[str, frozenset[str]] = {}
        self.check(self.path, overwrite)

    @staticmethod
    def check(path: Path | str, overwrite: bool) -> None:
        """Raise DataError where a store may not be made at `path`, before there is one to write."""
        path = Path(os.path.abspath(path))
        if not path.exists() and not path.is_symlink():
            return
        if not path.is_dir() or path.is_symlink():
            raise DataError(
                f"{path}: is a file or a link, expected a directory to make. Choose another {setting('out')}."
            )
        if not any(path.iterdir()):
            return
        if not (path / HEADER_FILE).is_file():
            raise DataError(f"{path}: is full of something that is not a token store. Choose another {setting('out')}.")
        if (path / BUDGET_FILE).is_file():
            raise DataError(
                f"{path}: the token store there carries a privacy budget, which would be lost with it. Choose another "
                f"{setting('out')}."
            )
        if not overwrite:
            raise DataError(
                f"{path}: there is a token store already. Choose another {setting('out')}, or pass "
                f"{setting('overwrite', True)}."
            )

    def __enter__(self) -> Self:
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._directory = self.path.with_name(f".{self.path.name}.partial")
            shutil.rmtree(self._directory, ignore_errors=True)  # a killed writer may have left it
            self._directory.mkdir()
            self._splits = {
                name: SplitWriter(
                    self._directory / split_file(name),
                    self._tokenizer.vocabulary_size,
                    *self._bounds,
                    completions=self._header.has_prompts(name),
                )
                for name in SPLITS
            }
        return self

    def add(
        self,
        split: str,
        client_id: str,
        sequences: Sequence[ArrayLike],
        prompt_lengths: Sequence[int] | None = None,
    ) -> None:
        """Append a client's examples, each the token ids, integers `[k]`, without BOS and EOS, not truncated; and, in a
        store of completions, how many of each example's tokens are its prompt.

        A client is unique in its split, since it is the unit that privacy protects, and one in heldout is in no other
        split, unless of sequences of items. Raises DataError where the client is there already, DiskError where the
        disk refuses, ValueError where the split does not exist or a token is outside the vocabulary.
        """
        if split not in self._splits:
            raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}")
        self._check_new(split, client_id)
        with disk_errors(self.path):
            self._splits[split].add(client_id, sequences, prompt_lengths)

    def append(self, split: str, path: Path) -> None:
        """Append the clients of a file that a `SplitWriter` with the same tokenizer wrote; raises as `add` does."""
        with disk_errors(self.path), pa.memory_map(str(path)) as file:
            for batch in _batches(path, file, self._tokenizer.vocabulary_size, self._header.has_prompts(split)):
                for client_id in batch.column(0).to_pylist():
                    self._check_new(split, client_id)
                self._splits[split].append(batch)

    def _check_new(self, split: str, client_id: str) -> None:
        # A user's text may be divided by time into train and test, but nobody who is held out may be trained on.
        found = self._client_ids.setdefault(client_id, frozenset())
        if split in found or (found and "heldout" in (split, *found) and not self._header.item_sequences):
            raise DataError(
                f"client {client_id!r} occurs twice ({', '.join(sorted({*found, split}))}), expected one record for "
                "each client. Join its records before the import."
            )
        self._client_ids[client_id] = _SPLIT_SETS[found | {split}]

    @property
    def clients(self) -> int:
        """How many clients there are so far, each counted once."""
        return len(self._client_ids)

    def record_skipped(self, skipped: SkippedCounts) -> None:
        """Add to the counts of inputs left out."""
        self._skipped.merge(skipped.as_dict(), skipped.first_places())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with disk_errors(self.path):
                    self._commit()
        finally:
            for split in self._splits.values():
                split.abandon()
            shutil.rmtree(self._directory, ignore_errors=True)

    def _commit(self) -> None:
        self.check(self.path, self._overwrite)
        headers = {name: split.finish() for name, split in self._splits.items()}
        vocabulary_size = self._tokenizer.vocabulary_size
        for name, header in headers.items():
            path = self._directory / split_file(name)
            written = ClientSplit(
                path, header, vocabulary_size=vocabulary_size, completions=self._header.has_prompts(name)
            )
            headers[name] = replace(header, sha256=written.fingerprint())
        if self._header.vocabulary_origin.seen_from({headers["train"].sha256}) != self._header.vocabulary_origin:
            raise DataError(
                f"{self.path}: its vocabulary was called public, but was made of the text of these very training "
                f"clients, as is recorded beside it; leave {setting('vocabulary_origin')} out"
            )
        self._tokenizer.save(self._directory / TOKENIZER_FILE)
        write_header(
            self._directory,
            replace(
                self._header,
                splits=headers,
                skipped=self._skipped.as_dict(),
                first_skipped=self._skipped.first_places(),
            ),
        )
        for file in sorted(self._directory.iterdir()):
            sync_to_disk(file)
        umask = os.umask(0o077)  # which can only be read by setting it
        os.umask(umask)
        self._directory.chmod(0o777 & ~umask)
        sync_to_disk(self._directory)
        replaced = self._directory.with_name(self._directory.name + "-replaced")
        move_into_place(self._directory, self.path, replaced)
        shutil.rmtree(replaced, ignore_errors=True)


def _batches(
    path: Path, file: pa.MemoryMappedFile, vocabulary_size: int, completions: bool
) -> Iterator[pa.RecordBatch]:
    try:
        reader = pa.ipc.open_file(file)
        if reader.schema != schema(vocabulary_size, completions):
            raise DataError(f"{path}: found other columns: {reader.schema}, expected those of this store.")
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: cannot be read ({error}), expected an Arrow file.") from error
