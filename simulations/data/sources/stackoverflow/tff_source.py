"""Federated text in the files of TensorFlow Federated: Stack Overflow, Shakespeare, or your own in their form."""

import lzma
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from fedlm.fl_core.errors import DataError, setting
from fedlm.simulations.data.sources.base import Progress, Reading
from fedlm.simulations.data.sources.stackoverflow import tff_tables
from fedlm.simulations.data.sources.stackoverflow.sqlite_files import SQLITE_SIGNATURE, Database
from fedlm.simulations.data.sources.stackoverflow.text_features import TEXT_FEATURES, FeatureFiles
from fedlm.simulations.data.sources.tables.byte_parts import unreadable

BLOCK_BYTES = 4 << 20
SEARCHED_BYTES = 64 << 20
"""So much of a compressed database is searched for the name of a feature, at most."""

_SIGNATURES: dict[bytes, Literal["SQLite", "LZMA"]] = {
    SQLITE_SIGNATURE: "SQLite",
    b"\xfd7zXZ\x00": "LZMA",
    b"\x5d\x00\x00": "LZMA",  # the older form of such files has only its usual settings to tell it by
}


@dataclass(frozen=True)
class StackOverflowTff(FeatureFiles):
    """Stack Overflow, or Shakespeare, as TensorFlow Federated publishes them.

    SQLite, still compressed (.lzma) or not. A compressed file needs room for the decompressed one beside the store
    while it is imported; so does one without an index, for a copy that has one.
    """

    def open(self, workspace: Path, progress: Progress) -> Reading:
        feature = self.text_feature()
        databases = []
        for number, path in enumerate(self.files()):
            beside = workspace / f"decompressed-{number}-{path.stem}"
            database = _decompressed(path, beside, progress) if _kind(path) == "LZMA" else Database(path, path)
            databases.append(tff_tables.indexed(database, beside.with_name(f"{beside.name}-indexed")))
        parts = tff_tables.table_parts(databases, feature)
        return Reading("sentences", sum(part.size for part in parts), parts, tff_tables.read_clients)

    def _find_feature(self, path: Path) -> str:
        return tff_tables.text_feature(Database(path, path)) if _kind(path) == "SQLite" else _compressed_feature(path)


def _kind(path: Path) -> Literal["SQLite", "LZMA"]:
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise unreadable(path, error) from error
    for signature, kind in _SIGNATURES.items():
        if start.startswith(signature):
            return kind
    raise DataError(
        f"{path}: found a file that begins with {start!r}, expected an SQLite database, or the same compressed "
        "(.lzma). Fetch it again, or unpack it."
    )


def _decompressed(path: Path, out: Path, progress: Progress) -> Database:
    """Decompress a database, unless that was done before; errors of the disk are the caller's."""
    if not out.exists():
        partial = out.with_name(out.name + ".partial")
        size = path.stat().st_size
        try:
            with path.open("rb") as file, partial.open("wb") as target:
                for block in _blocks(path, file):
                    target.write(block)
                    progress("decompress", file.tell(), size, "bytes")
                target.flush()
                os.fsync(target.fileno())
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
    return Database(out, path)


def _blocks(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    try:
        with lzma.LZMAFile(file) as stream:
            start = stream.read(len(SQLITE_SIGNATURE))
            if start != SQLITE_SIGNATURE:
                raise DataError(
                    f"{path}: decompressed, it begins with {start!r}, expected an SQLite database. Unpack it yourself, "
                    "and name what is in it."
                )
            yield start
            while block := stream.read(BLOCK_BYTES):
                yield block
    except (EOFError, lzma.LZMAError) as error:
        raise unreadable(path, error) from error


def _compressed_feature(path: Path) -> str:
    """Return the first usual feature whose name, as examples have it, is found near the beginning.

    Decompressing all of it only to know this, once more when an interrupted import goes on, would take hours.
    """
    searched, before = 0, b""
    with path.open("rb") as file:
        for block in _blocks(path, file):
            for name in TEXT_FEATURES:
                if b"\n" + bytes([len(name)]) + name.encode() in before + block:
                    return name
            searched, before = searched + len(block), block[-16:]
            if searched >= SEARCHED_BYTES:
                break
    raise DataError(
        f"{path}: found none of the features {', '.join(TEXT_FEATURES)} in its first {searched >> 20} MiB. "
        f"Name the feature with the text with {setting('feature')}."
    )
