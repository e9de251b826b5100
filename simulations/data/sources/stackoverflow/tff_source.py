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

_SIGNATURES: dict[bytes, Literal["SQLite", "HDF5", "LZMA"]] = {
    SQLITE_SIGNATURE: "SQLite",
    b"\x89HDF\r\n\x1a\n": "HDF5",
    b"\xfd7zXZ\x00": "LZMA",
    b"\x5d\x00\x00": "LZMA",  # the older form of such files has only its usual settings to tell it by
}


@dataclass(frozen=True)
class StackOverflowTff(FeatureFiles):
    """Stack Overflow, or Shakespeare, as TensorFlow Federated publishes them.

    Either SQLite, still compressed (.lzma) or not, or the older HDF5 files, whose names end in _train, _held_out and
    _test. A compressed file needs room for the decompressed one beside the store while it is imported.
    """

    def open(self, workspace: Path, progress: Progress) -> Reading:
        files = self.files()
        kinds = [_kind(path) for path in files]
        feature = self.text_feature()
        if "HDF5" not in kinds:
            databases = [
                _decompressed(path, workspace / f"decompressed-{number}-{path.stem}", progress)
                if kind == "LZMA"
                else Database(path, path)
                for number, (path, kind) in enumerate(zip(files, kinds, strict=True))
            ]
            parts = tff_tables.table_parts(databases, feature, progress)
            return Reading("sentences", sum(part.size for part in parts), parts, tff_tables.read_table)
        if len(set(kinds)) > 1:
            raise DataError(
                f"{files[kinds.index('HDF5')]}: found HDF5 beside SQLite files, expected one of both kinds. They hold "
                "the same data: name only one kind."
            )
        from fedlm.simulations.data.sources.stackoverflow import tff_hdf5

        parts = tff_hdf5.hdf5_parts(files, feature)
        return Reading("clients", sum(part.size for part in parts), parts, tff_hdf5.read_hdf5)

    def _find_feature(self, path: Path) -> str:
        kind = _kind(path)
        if kind == "HDF5":
            from fedlm.simulations.data.sources.stackoverflow import tff_hdf5

            return tff_hdf5.text_feature(path)
        return tff_tables.text_feature(Database(path, path)) if kind == "SQLite" else _text_feature_compressed(path)


def _kind(path: Path) -> Literal["SQLite", "HDF5", "LZMA"]:
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise unreadable(path, error) from error
    for signature, kind in _SIGNATURES.items():
        if start.startswith(signature):
            return kind
    raise DataError(
        f"{path}: found a file that begins with {start!r}, expected an SQLite database, the same compressed (.lzma), "
        "or an HDF5 file. Fetch it again, or unpack it."
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


def _text_feature_compressed(path: Path) -> str:
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
