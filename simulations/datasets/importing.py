"""From a source of text to a token store: one pass trains the tokenizer, one encodes and writes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulations.datasets.client_text import ClientText, SkippedCounts
from simulations.datasets.splits import split_of
from simulations.datasets.stdlib_corpus import read_stdlib
from simulations.datasets.store import StoreWriter
from simulations.datasets.store_format import StoreHeader, read_header
from simulations.datasets.tokenization import Tokenizer

ENCODE_SENTENCES = 20_000  # sentences encoded at once: enough to keep the tokenizer's threads busy

Progress = Callable[[str, int, int | None], None]
"""Called with (phase, done, total); the total is None where it is not known."""

ReadClients = Callable[[SkippedCounts], Iterable[ClientText]]
"""Yields the clients of a source, each once, and counts what it skips; every call yields the same."""


@dataclass(frozen=True)
class Source:
    """A source of text that `fedlm data import` knows by name.

    Args:
      description: one line for the help text.
      prepare: given a progress callback, returns the function that yields the clients.
    """

    description: str
    prepare: Callable[[Progress], ReadClients]


@dataclass(frozen=True)
class ImportSummary:
    """What an import made.

    Args:
      path: the store's directory.
      header: the store's header, with the counts of each split and of skipped inputs.
    """

    path: Path
    header: StoreHeader


def _prepare_stdlib(progress: Progress) -> ReadClients:
    # A few megabytes, so that the modules are parsed once for both passes.
    counts = SkippedCounts()
    clients = list(read_stdlib(counts, lambda done, total: progress("read modules", done, total)))

    def read(skipped: SkippedCounts) -> list[ClientText]:
        for reason, count in counts.items():
            skipped.add(reason, count)
        return clients

    return read


SOURCES = {
    "stdlib": Source(
        "English sentences of this machine's Python standard library, one module a client", _prepare_stdlib
    ),
}


def import_stdlib(
    out: Path | str,
    vocabulary_size: int = 4096,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """Import the docstrings and comments of this machine's Python standard library.

    Args:
      out: the store to make.
      vocabulary_size: tokens of the WordPiece vocabulary, trained on the train split.
      seed: of the split of the clients into train, heldout and test.
      overwrite: whether a token store at `out` may be replaced.
      progress: called as the import proceeds.

    Raises:
      DataError: `out` may not be written, or there is no standard library to read.
    """
    return import_source("stdlib", out, vocabulary_size, seed, overwrite, progress)


def import_source(
    name: str,
    out: Path | str,
    vocabulary_size: int = 4096,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """Import a source of `SOURCES` by name; arguments and errors as for `import_stdlib`."""
    progress = progress or (lambda phase, done, total: None)
    StoreWriter.check(out, overwrite)  # before the long work, not after it
    read = SOURCES[name].prepare(progress)
    return import_clients(name, read, out, vocabulary_size, seed, overwrite, progress)


def import_clients(
    source: str,
    read: ReadClients,
    out: Path | str,
    vocabulary_size: int,
    seed: int,
    overwrite: bool,
    progress: Progress,
) -> ImportSummary:
    """Split, tokenize and store the clients of any source, reading them twice.

    Sentences without a token, and clients without a sentence, are left out and counted.

    Args:
      source: the source's name, kept in the header.
      read: yields the clients.
      out: the store to make.
      vocabulary_size: tokens of the vocabulary, trained on the train split only.
      seed: of the split.
      overwrite: whether a token store at `out` may be replaced.
      progress: called as the import proceeds.

    Raises:
      DataError: the source cannot be read, has no text or names a client twice, or `out` may not be written.
    """
    seen = 0

    def train_sentences() -> Iterator[str]:
        nonlocal seen
        for client in read(SkippedCounts()):
            seen += 1
            if split_of(client.client_id, seed) == "train":
                yield from client.sentences

    progress("train the tokenizer", 0, None)
    tokenizer = Tokenizer.train(train_sentences(), vocabulary_size)
    progress("train the tokenizer", seen, seen)

    skipped = SkippedCounts()
    parameters = {"seed": seed, "vocabulary_size": vocabulary_size}
    with StoreWriter(out, source, tokenizer, parameters, overwrite) as writer:
        done = 0
        for clients in _chunks(read(skipped), ENCODE_SENTENCES):
            for client_id, sequences in _encode(clients, tokenizer, skipped):
                writer.add(split_of(client_id, seed), client_id, sequences)
            done += len(clients)
            progress("write clients", done, seen)
        writer.record_skipped(skipped.as_dict())
    return ImportSummary(writer.path, read_header(writer.path))


def _encode(
    clients: list[ClientText], tokenizer: Tokenizer, skipped: SkippedCounts
) -> Iterator[tuple[str, list[list[int]]]]:
    encoded = tokenizer.encode_batch([sentence for client in clients for sentence in client.sentences])
    ends = np.cumsum([len(client.sentences) for client in clients]).tolist()
    for client, start, end in zip(clients, [0, *ends], ends, strict=False):
        sequences = [sequence for sequence in encoded[start:end] if sequence]
        skipped.add("sentence without a token", end - start - len(sequences))
        if sequences:
            yield client.client_id, sequences
        else:
            skipped.add("client without text")


def _chunks(clients: Iterable[ClientText], num_sentences: int) -> Iterator[list[ClientText]]:
    chunk: list[ClientText] = []
    total = 0
    for client in clients:
        chunk.append(client)
        total += len(client.sentences)
        if total >= num_sentences:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
