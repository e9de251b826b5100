"""The token store: the token sequences of federated clients on disk, memory-mapped.

A store is a directory: `store.json` (the header), `tokenizer.json`, and `train.arrow`, `heldout.arrow` and
`test.arrow` in the Arrow IPC file format, one row a client. Opening reads the header only; a client's tokens
are views of the mapped file, read by the operating system when touched and dropped by it when memory is short.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Self

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE, VocabularyOrigin
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.shown import in_a_line, in_a_table
from fedlm.models.special_tokens import SpecialTokens
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.client_split import ClientSplit
from fedlm.simulations.data.store.format import IMPORT_AGAIN, StoreHeader, read_header, split_file
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer


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
