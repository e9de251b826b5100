"""Cutting large files of bytes into parts at the ends of records, without reading them into memory."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, NamedTuple, cast

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.text_encodings import refuse_other_encodings
from fedlm.simulations.data.sources.base import PART_BYTES, Part

MAX_RECORD_BYTES = 64 << 20
"""A line or row may not be longer."""

DECOMPRESSORS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file)),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".lzma": lzma.LZMAFile,
}
"""How a file is decompressed as it is read, by the end of its name."""

FindEnd = Callable[[bytes, int], int]
"""Given bytes that begin with a record and where to begin looking, finds where the last whole record ends; -1 where
none does. It is then called again with the same bytes and more after them, to look on from where it stopped; and with
0 whenever the bytes are new. It may therefore keep what it knows of the bytes it has seen."""


class BytePart(NamedTuple):
    """A run of whole records of one file."""

    path: Path
    start: int  # in bytes of the decompressed file
    stop: int
    first_line: int  # its number, from 1
    last: bool  # whether the file ends with it
    data: bytes | None  # the bytes, where the file is compressed; None where `load` reads them from the file

    def load(self) -> bytes:
        """Return the part's bytes; raises DataError where the file cannot be read, or has become shorter."""
        if self.data is not None:
            return self.data
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                data = file.read(self.stop - self.start)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(data) != self.stop - self.start:
            raise DataError(f"{self.path}: became shorter while it was read. Import it again when it is complete.")
        return data


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error that tells a user why a file cannot be read; the operating system's errors have a number."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{path}: cannot be read ({error.strerror}). Check the file's name and permissions.")
    return DataError(f"{path}: is damaged or cut off ({error}). Fetch the file again, and check that it is complete.")


@contextmanager
def damage_errors(library: str, place: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn a library's errors in a block into a DataError that says where it was and what to do."""
    try:
        yield
    except kinds as error:
        raise DataError(
            f"{place}: {library} cannot read it ({error}). The file is damaged or cut off: fetch it again, and check "
            "that it is complete."
        ) from error


def last_line_end(data: bytes, start: int) -> int:
    """Find where the last whole line ends; a `FindEnd`."""
    return data.rfind(b"\n", start) + 1 or -1


def byte_parts(path: Path, find_end: FindEnd, part_bytes: int = PART_BYTES) -> Iterator[Part]:
    """Cut a file, compressed as `DECOMPRESSORS` says, into parts of whole records of about some size.

    The parts have a `BytePart` as content and are sized in bytes of the file on disk. Raises DataError where the file
    cannot be read, its compressed stream is damaged or cut off, or a record is longer than `MAX_RECORD_BYTES`.
    """
    decompress = DECOMPRESSORS.get(path.suffix.lower())
    try:
        with path.open("rb") as file, decompress(file) if decompress else nullcontext(file) as stream:
            yield from stream_parts(
                path, stream, find_end, keep_data=decompress is not None, position=file.tell, part_bytes=part_bytes
            )
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise unreadable(path, error) from error


def stream_parts(
    path: Path,
    stream: IO[bytes],
    find_end: FindEnd,
    *,
    keep_data: bool,
    position: Callable[[], int],
    part_bytes: int = PART_BYTES,
) -> Iterator[Part]:
    """Cut a stream into parts of whole records, as `byte_parts`, with their bytes where `keep_data`.

    `position` says how far the stream has been read, in the unit of the parts' sizes. No part is empty unless the
    stream is; the last one's records need not be whole. Raises DataError where a record is longer than
    `MAX_RECORD_BYTES`, or the text is not in UTF-8 from its beginning.
    """
    pending, searched = b"", 0
    start, line, counted = 0, 1, 0
    block = stream.read(part_bytes)
    refuse_other_encodings(path, block[:4])
    while block:
        pending += block
        now = position()
        block = stream.read(part_bytes)  # ahead, to know which part is the last one
        end = find_end(pending, searched)
        if end <= 0:
            searched = len(pending)
            if searched > MAX_RECORD_BYTES:
                raise DataError(
                    f"{path}: line {line} (byte {start}) begins a record of more than {MAX_RECORD_BYTES >> 20} MiB, "
                    "expected shorter ones. Is a quotation mark there not closed, or is this another kind of file?"
                )
        elif block or end < len(pending):
            done, pending, searched = pending[:end], pending[end:], 0
            part = BytePart(path, start, start + end, line, False, done if keep_data else None)
            yield Part(part, now - counted)
            start, line, counted = start + end, line + done.count(b"\n"), now
    part = BytePart(path, start, start + len(pending), line, True, pending if keep_data else None)
    yield Part(part, max(0, position() - counted))
