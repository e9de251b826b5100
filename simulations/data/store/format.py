"""The layout of a token store: a directory with a header, a tokenizer and one Arrow file for each split."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD, STORE_HEADER, UNKNOWN, VocabularyOrigin
from fedlm.simulations.data.splits import SPLITS

FORMAT = "fedlm-token-store"
FORMAT_VERSION = 1
HEADER_FILE = STORE_HEADER
_SOURCES_OF_FILES = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
IMPORT_AGAIN = "Import the data again."


@dataclass(frozen=True)
class SplitHeader:
    """What the header says of one split."""

    clients: int = 0
    examples: int = 0
    tokens: int = 0  # of all examples, without BOS and EOS
    bytes: int = 0  # size of the Arrow file, by which a truncated file is known at once
    batch_clients: tuple[int, ...] = ()  # clients in each record batch, so that a client is found without reading any
    sha256: str = ""  # of the names and tokens of its clients, see `ClientSplit.fingerprint`


@dataclass(frozen=True)
class StoreHeader:
    """What `store.json` says of a store."""

    source: str  # name of the source the text came from
    vocabulary_size: int
    tokenizer_fingerprint: str
    splits: dict[str, SplitHeader]
    skipped: dict[str, int] = field(default_factory=dict)  # inputs left out at import, by reason
    # where the first of each reason was, where that is known
    first_skipped: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)  # what the store was made with
    vocabulary_origin: VocabularyOrigin = UNKNOWN  # which of its people the vocabulary tells of, and what
    completions: bool = False  # whether each example is a prompt and what completes it
    without_users: bool = False  # whether nobody is named for its texts, each of which is a client of its own
    # whether each client is a user with one example, the items that the user has met in the order of time, the last
    # ones of which are held out: train has those before, heldout and test have one more each, after its history
    item_sequences: bool = False

    def has_prompts(self, split: str) -> bool:
        """Whether each example of a split is a prompt, or a history, and what completes it."""
        return self.completions or (self.item_sequences and split != "train")


def split_file(name: str) -> str:
    """Return the file name of a split."""
    return f"{name}.arrow"


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """Return the narrowest of uint16 and uint32 that holds every token id."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def schema(vocabulary_size: int, completions: bool = False) -> pa.Schema:
    """Return the columns of a split: one row a client, its examples a list of lists of token ids, and of completions a
    list of how many of each example's tokens are its prompt.

    Offsets are 32 bits wide: they count from the start of a record batch, and batches are bounded.
    """
    token = pa.from_numpy_dtype(token_dtype(vocabulary_size))
    columns = [
        pa.field("client_id", pa.string(), nullable=False),
        pa.field("examples", pa.list_(pa.list_(token)), nullable=False),
    ]
    prompts = [pa.field("prompt_lengths", pa.list_(pa.int32()), nullable=False)]
    return pa.schema(columns + (prompts if completions else []))


def write_header(directory: Path, header: StoreHeader) -> None:
    """Write `store.json`."""
    document = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(header)}
    del document[ORIGIN_FIELD]
    for name in ("completions", "item_sequences"):
        if not document[name]:
            del document[name]
    if header.vocabulary_origin.recorded:
        document[ORIGIN_FIELD] = header.vocabulary_origin.as_json()
    (directory / HEADER_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _how_to_make(directory: Path) -> str:
    """Say how to come to a store where none is; a file there may be the text, which nothing must be written over."""
    if not directory.is_file():
        return (
            "Check the name, or make one of your text: `fedlm data import` lists the sources. For a trial: "
            f"fedlm data import stdlib --out {directory}"
        )
    source = _SOURCES_OF_FILES.get(directory.suffix, "SOURCE")
    return (
        f"Make one of that file with: fedlm data import {source} {directory} --out FOLDER; then give that folder. "
        "`fedlm data import` lists the sources"
    )


def read_header(directory: Path) -> StoreHeader:
    """Read `store.json`; raises DataError where it is missing, damaged or of another format version."""
    path = directory / HEADER_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{path}: there is no such file, so {directory} is not a token store. {_how_to_make(directory)}"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}), expected the header of a token store. {IMPORT_AGAIN}"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f'{path}: found no "format": "{FORMAT}", expected a token store. {IMPORT_AGAIN}')
    if document.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: found format version {document.get('format_version')!r}, this release reads version "
            f"{FORMAT_VERSION}. Import the data again, or use the release that wrote it."
        )
    try:
        return _parse(document)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
        raise DataError(
            f"{path}: a field is missing or wrong ({type(error).__name__}: {error}). {IMPORT_AGAIN}"
        ) from error


def _parse(document: dict[str, Any]) -> StoreHeader:
    splits = {}
    for name in SPLITS:
        fields = document["splits"][name]
        batches = tuple(int(clients) for clients in fields["batch_clients"])
        splits[name] = SplitHeader(
            **{key: int(fields[key]) for key in ("clients", "examples", "tokens", "bytes")},
            batch_clients=batches,
            sha256=str(fields["sha256"]),
        )
        if sum(batches) != splits[name].clients:
            raise ValueError(f"batch_clients of {name} sum to {sum(batches)}, clients are {fields['clients']}")
    return StoreHeader(
        source=str(document["source"]),
        vocabulary_size=int(document["vocabulary_size"]),
        tokenizer_fingerprint=str(document["tokenizer_fingerprint"]),
        splits=splits,
        skipped={str(reason): int(count) for reason, count in document["skipped"].items()},
        first_skipped={str(reason): str(place) for reason, place in document["first_skipped"].items()},
        parameters=dict(document["parameters"]),
        vocabulary_origin=VocabularyOrigin.from_json(document.get(ORIGIN_FIELD)),
        completions=bool(document.get("completions", False)),
        item_sequences=bool(document.get("item_sequences", False)),
        without_users=bool(document["without_users"]),
    )
