"""Reading members of 7z archives as streams of bytes, without extracting them to disk."""

import io
import queue
import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from fedlm.fl_core.errors import DataError
from fedlm.fl_core.extras import extra
from fedlm.simulations.data.sources.tables.byte_parts import unreadable

with extra("data"):
    import py7zr
    from py7zr.exceptions import CrcError, PasswordRequired, UnsupportedCompressionMethodError

_PIECE_BYTES = 1 << 20
_PIECES_AHEAD = 8
"""Decompressed pieces that wait for the reader: enough to decompress the next part while one is taken."""


class Member(NamedTuple):
    """A file in an archive."""

    name: str  # with folders, if any
    size: int  # in bytes, decompressed


class MemberStream(NamedTuple):
    """An opened member."""

    name: str
    stream: IO[bytes]
    position: Callable[[], int]  # says how many bytes have been decompressed for the stream's reader


def list_members(path: Path) -> list[Member]:
    """List the files in an archive; raises DataError where it cannot be read, is damaged, or is not a 7z archive."""
    with _archive_errors(path), path.open("rb") as file, py7zr.SevenZipFile(file) as archive:
        return [Member(found.filename, found.uncompressed or 0) for found in archive.list() if not found.is_directory]


def open_members(path: Path, names: Collection[str]) -> Generator[MemberStream, None, None]:
    """Open members of an archive one after the other; close the iterator to stop early.

    They come in the archive's order, each to be read before the next is asked for. Reading a stream raises DataError,
    too.
    """
    extraction = _Extraction(path, names)
    try:
        while (member := extraction.next_member()) is not None:
            yield member
    finally:
        extraction.stop()


class _Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """Nobody reads any more."""


class _Extraction:
    """A thread in which py7zr pushes bytes, and a bounded queue from which streams take them."""

    def __init__(self, path: Path, names: Collection[str]) -> None:
        self.path = path
        self._names = names
        # A name begins a member, None ends the last.
        self._items: queue.Queue[str | bytes | Exception | None] = queue.Queue(_PIECES_AHEAD)
        self._upcoming: str | None = None
        self._finished = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._extract, name=f"read {path.name}", daemon=True)
        self._thread.start()

    def next_member(self) -> MemberStream | None:
        """Return the next member after what is left of the last, or None where there is none."""
        while self._upcoming is None and not self._finished:
            self.next_piece()
        if self._upcoming is None:
            return None
        name, self._upcoming = self._upcoming, None
        raw = _Pieces(self)
        return MemberStream(name, cast(IO[bytes], io.BufferedReader(raw, _PIECE_BYTES)), raw.tell)

    def next_piece(self) -> bytes:
        """Return the member's next bytes, none where it has ended."""
        if self._upcoming is not None or self._finished:
            return b""
        item = self._items.get()
        if isinstance(item, bytes):
            return item
        if isinstance(item, str):
            self._upcoming = item
            return b""
        self._finished = True
        if isinstance(item, Exception):
            with _archive_errors(self.path):
                raise item
        return b""

    def put(self, item: str | bytes | Exception | None) -> None:
        """Hand something to the reader, from the thread, as soon as there is room."""
        self.check()
        self._items.put(item)

    def check(self) -> None:
        """Raise `_Stopped` where nobody reads any more."""
        if self._stopped.is_set():
            raise _Stopped

    def stop(self) -> None:
        """End the thread."""
        self._finished = True
        self._stopped.set()
        while self._thread.is_alive():
            try:  # make room, in case it waits
                self._items.get(timeout=0.05)
            except queue.Empty:
                continue

    def _extract(self) -> None:
        try:
            try:
                # Given a file, not a path, py7zr decompresses one member at a time.
                with _CheckedFile(self) as file, py7zr.SevenZipFile(file) as archive:
                    archive.extract(targets=list(self._names), factory=_Factory(self))
                self.put(None)
            except _Stopped:
                raise
            except Exception as error:  # the reader turns it into a message
                self.put(error)
        except _Stopped:
            pass


class _CheckedFile(io.BufferedReader):
    """The archive; reading it ends with the extraction, also while py7zr skips members that nobody wants."""

    def __init__(self, extraction: _Extraction) -> None:
        super().__init__(io.FileIO(extraction.path))
        self._extraction = extraction

    def read(self, size: int | None = -1, /) -> bytes:
        self._extraction.check()
        return super().read(size)


class _Factory(py7zr.io.WriterFactory):
    def __init__(self, extraction: _Extraction) -> None:
        self._extraction = extraction

    def create(self, filename: str) -> py7zr.io.Py7zIO:
        self._extraction.put(filename)
        return _Receiver(self._extraction)


class _Receiver(py7zr.io.Py7zIO):
    """Where py7zr writes a member."""

    def __init__(self, extraction: _Extraction) -> None:
        self._extraction = extraction
        self._size = 0

    def write(self, s: bytes | bytearray) -> int:
        view = memoryview(s)
        for start in range(0, len(view), _PIECE_BYTES):
            self._extraction.put(bytes(view[start : start + _PIECE_BYTES]))
        self._size += len(view)
        return len(view)

    def read(self, size: int | None = None) -> bytes:
        return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        return 0

    def flush(self) -> None:
        pass

    def size(self) -> int:
        return self._size


class _Pieces(io.RawIOBase):
    """A member's bytes as they come out of the queue."""

    def __init__(self, extraction: _Extraction) -> None:
        super().__init__()
        self._extraction = extraction
        self._piece = memoryview(b"")
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._piece:
            self._piece = memoryview(self._extraction.next_piece())
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._piece))
        target[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        self._given += count
        return count

    def tell(self) -> int:
        return self._given


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with an archive into a message."""
    try:
        yield
    except PasswordRequired as error:
        raise DataError(
            f"{path}: is protected by a password, expected an archive that can be read as it is."
        ) from error
    except UnsupportedCompressionMethodError as error:
        raise DataError(
            f"{path}: is compressed in a way that cannot be read here ({error.message}). "
            "Extract it with 7-Zip, and import the files in it."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # py7zr raises what its steps happen to meet in damaged bytes
        what = f"wrong checksum of {error.filename}" if isinstance(error, CrcError) else str(error) or repr(error)
        raise DataError(
            f"{path}: is damaged, cut off or not a 7z archive ({what}). Fetch it again, and check that it is complete."
        ) from error
