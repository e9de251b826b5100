"""The tokens of one split as one long memory-mapped array, from which sequences of any length are cut.

Every stored example stands there as `[BOS] w1 .. wk [EOS]`, client after client in the store's order. It is written
once into a cache folder; opening it again reads nothing.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.fedlm_client.files import sync_to_disk
from fedlm.fl_core.atomic_files import disk_errors, write_atomically
from fedlm.fl_core.errors import DataError
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.models.special_tokens import SpecialTokens
from fedlm.simulations.data.store.client_split import ClientSplit
from fedlm.simulations.data.store.format import token_dtype
from fedlm.simulations.data.store.token_store import TokenStore

_LAYOUT = 2  # of the files; those of another release are not read
_WAIT_SECONDS = 24 * 3600.0
"""For another process that writes the same files."""


class TokenStream:
    """The tokens of one split.

    Attributes:
      tokens: uint16 or uint32 [tokens], with BOS before and EOS after each example; memory-mapped.
      starts: int64 [examples + 1], where each example's BOS is, then the number of tokens; memory-mapped.
      prompt_lengths: int32 [examples], the tokens of each example's prompt, which follow BOS; memory-mapped. None where
        the store has no prompts.
      item_sequences: whether each example is a sequence of items, of which the last are read and EOS is not.
    """

    def __init__(self, folder: Path, split: ClientSplit) -> None:
        """Map the files of a folder that `open_stream` has filled; `split` says whose the examples are. Raises
        DataError where a file is missing or damaged."""
        # Plain views: a subclass of arrays would cost more than reading a few of its items.
        self.tokens: NDArray[np.unsignedinteger] = np.asarray(_mapped(folder / "tokens.npy"))
        self.starts: NDArray[np.int64] = np.asarray(_mapped(folder / "starts.npy"))
        self.prompt_lengths: NDArray[np.int32] | None = None
        if split.has_completions:
            self.prompt_lengths = np.asarray(_mapped(folder / "prompts.npy"))
        self.item_sequences = split.item_sequences
        self.num_examples = split.header.examples
        self.num_clients = split.num_clients
        self._split = split

    def client_id(self, client: int) -> str:
        """Return the name of a client."""
        return self._split.client_id(client)

    @cached_property
    def first_examples(self) -> NDArray[np.int64]:
        """int64 [clients + 1]: the number of each client's first example, then the number of examples."""
        return np.concatenate([[0], np.cumsum(self._split.num_examples, dtype=np.int64)])


def open_stream(store: TokenStore, split: str, cache: Path, check: bool = False) -> TokenStream:
    """Open the tokens of a split, writing them first where the cache has not got them; of several processes one writes,
    the others wait. With `check` they are read whole, to see that they are still what was written. Raises DataError
    where the split does not exist, is empty or damaged, or the cache was changed, DiskError where it cannot be written,
    ConfigurationError where another process has been writing the same for a day."""
    clients = store.split(split)
    if not clients.header.examples:
        raise DataError(f"{store.path}: the split {split!r} has no examples, expected at least one. Import more text.")
    record = _record(store, split, clients)
    folder = cache / f"tokens-{hashlib.sha256(record.encode()).hexdigest()[:16]}"
    complete = folder / "complete.json"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not complete.exists():
            with run_lock(folder, _WAIT_SECONDS):
                if not complete.exists():
                    _write_stream(folder, clients, token_dtype(store.vocabulary_size), store.special_tokens)
                    # Of what was read, which may no longer be what was imported.
                    made = {"of": record, "clients": clients.fingerprint(), "arrays": _digests(folder)}
                    write_atomically(complete, json.dumps(made))
        if check and not _is_unchanged(folder, complete, clients):
            raise DataError(
                f"{folder}: is not what {store.path} has, or was changed since, so that what is trained on would not "
                "be that data. Remove the folder; it is made again."
            )
    return TokenStream(folder, clients)


def _is_unchanged(folder: Path, complete: Path, clients: ClientSplit) -> bool:
    try:
        made = json.loads(complete.read_text(encoding="utf-8"))
        return made["arrays"] == _digests(folder) and made["clients"] == (
            clients.header.sha256 or clients.fingerprint()
        )
    except (ValueError, KeyError, TypeError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.glob("*.npy")):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _mapped(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}), expected a file that was made of a token store. Remove the folder "
            f"{path.parent}; it is made again."
        ) from error


def _record(store: TokenStore, split: str, clients: ClientSplit) -> str:
    # The contents tell only sizes, and times of writing may be equal.
    found = {"store": store.contents, "split": split, "sha256": clients.header.sha256}
    return json.dumps({"layout": _LAYOUT, **found, "written": clients.path.stat().st_mtime_ns})


def _write_stream(folder: Path, clients: ClientSplit, dtype: np.dtype[Any], special_tokens: SpecialTokens) -> None:
    examples = clients.header.examples
    _write_array(folder / "starts.npy", np.dtype(np.int64), examples + 1, _starts(clients))
    if clients.has_completions:
        found = (clients.batch_prompt_lengths(batch) for batch in range(clients.num_batches))
        prompts = (lengths for lengths in found if lengths is not None)
        _write_array(folder / "prompts.npy", np.dtype(np.int32), examples, prompts)
    pieces = (
        _with_ends(clients.batch_values(batch), clients.batch_lengths(batch), special_tokens)
        for batch in range(clients.num_batches)
    )
    _write_array(folder / "tokens.npy", dtype, clients.header.tokens + 2 * examples, pieces)


def _starts(clients: ClientSplit) -> Iterator[NDArray[np.int64]]:
    """Yield `TokenStream.starts` in pieces."""
    start = np.zeros(1, np.int64)
    yield start
    for batch in range(clients.num_batches):
        following = start[-1:] + np.cumsum(clients.batch_lengths(batch) + 2, dtype=np.int64)
        yield following
        start = following if len(following) else start


def _with_ends(
    values: NDArray[np.unsignedinteger], lengths: NDArray[np.int32], special_tokens: SpecialTokens
) -> NDArray[np.unsignedinteger]:
    """Return examples that lie end to end with BOS before and EOS after each."""
    stops = np.cumsum(lengths + 2)
    joined = np.empty(len(values) + 2 * len(lengths), values.dtype)
    joined[stops - 1] = special_tokens.eos
    joined[stops - lengths - 2] = special_tokens.bos
    joined[np.arange(len(values)) + np.repeat(2 * np.arange(len(lengths)) + 1, lengths)] = values
    return joined


def _write_array(path: Path, dtype: np.dtype[Any], size: int, pieces: Iterable[NDArray[Any]]) -> None:
    """Write an array piece by piece, beside its place, and rename it.

    Not through a memory map: a full disk would then end the process in place of raising an error.
    """
    beside = path.with_name(path.name + ".partial")
    with beside.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype).data)
    sync_to_disk(beside)
    beside.replace(path)
