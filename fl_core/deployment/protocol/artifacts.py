"""Bytes named by their content, cut into chunks by the server; `fedlm_client.link.artifacts` puts them together."""

import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import UnknownArtifactError
from fedlm.fedlm_client.link.artifacts import digest_of
from fedlm.fl_core.atomic_files import disk_errors

Buffer = bytes | bytearray | memoryview


class _ContentFile:
    """A file without a name, which is gone when nobody holds this any more; `withdrawn` asks whoever does to let go."""

    def __init__(self, folder: Path | None, chunk_bytes: int):
        self.size, self.chunk_bytes, self.withdrawn = 0, chunk_bytes, False
        with tempfile.TemporaryFile(dir=folder) as file:
            self._number = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._number)

    def fileno(self) -> int:
        return self._number

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fileno(), view) :]
        self.size += len(data)


class ServedChunk:
    """A part of a served artifact; it holds what it is in, so that nothing else is ever sent in its place.

    Attributes:
      file: that has it.
      offset: where its content begins there.
      size: bytes of its content.
      count: how many chunks it is; more than one only where that was asked for.
    """

    __slots__ = ("count", "file", "offset", "size")

    def __init__(self, file: _ContentFile, offset: int, size: int, count: int = 1):
        self.file, self.offset, self.size, self.count = file, offset, size, count

    def content(self) -> bytes:
        """Read the content."""
        return os.pread(self.file.fileno(), self.size, self.offset)


class ServedArtifact:
    """An artifact in a file of the server, cut into chunks.

    Attributes:
      description: what a client needs to know to fetch it.
    """

    def __init__(self, content: Iterable[Buffer], encoding: str, chunk_bytes: int, folder: Path | None = None):
        """Cut content, at least one byte in pieces of any size, into chunks.

        It goes to a file without a name in `folder`; in the system's for temporary files where that is None.

        Raises:
          DiskError: the content cannot be written.
        """
        self._chunks: list[ServedChunk] = []
        digests = []
        with disk_errors(folder or Path(tempfile.gettempdir())):
            file = _ContentFile(folder, chunk_bytes)
            for data in _chunks(content, chunk_bytes):
                self._chunks.append(ServedChunk(file, file.size, len(data)))
                digests.append(hashlib.sha256(data).digest())
                file.append(data)
        self.description = messages.Artifact(
            encoding=encoding, size=file.size, chunk_bytes=chunk_bytes, chunk_digests=digests
        )
        self.description.digest = digest_of(self.description)

    def chunk(self, number: int, bytes_at_once: int = 0) -> ServedChunk:
        """Take a chunk by its number, or as many from there on as have no more than `bytes_at_once` together, in one.

        Raises:
          UnknownArtifactError: there is no such chunk, or none any more.
        """
        if number >= len(self._chunks):
            raise UnknownArtifactError(f"there is no chunk {number} of this download now")
        first = self._chunks[number]
        parts = self._chunks[number : number + max(1, bytes_at_once // first.file.chunk_bytes)]
        if len(parts) == 1:
            return first
        return ServedChunk(first.file, first.offset, sum(part.size for part in parts), len(parts))

    def withdraw(self) -> None:
        """Forget the content, also where a slow client is still fetching it."""
        for chunk in self._chunks[:1]:
            chunk.file.withdrawn = True
        self._chunks = []


def _chunks(pieces: Iterable[Buffer], size: int) -> Iterator[bytes]:
    """Cut pieces, laid end to end, into chunks of one size; the last may be shorter."""
    chunk = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            taken, view = view[: size - len(chunk)], view[size - len(chunk) :]
            chunk += taken
            if len(chunk) == size:
                yield bytes(chunk)
                chunk.clear()
    if chunk:
        yield bytes(chunk)
