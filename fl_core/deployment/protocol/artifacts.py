"""Bytes named by their content: cut into chunks by the server, fetched, checked and put together by a client.

Each chunk has a SHA-256 of its own, so that a download goes on where it broke off and a changed byte is found at once;
the artifact's digest is over its sizes and all chunks' digests.
"""

import hashlib
import os
import struct
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedlm.fl_core.atomic_files import disk_errors
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.errors import TransportError, UnknownArtifactError
from fedlm.fl_core.errors import ConfigurationError, setting

Buffer = bytes | bytearray | memoryview
_SIZES = struct.Struct("<QI")


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
        self.description.digest = _digest(self.description)

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


class ArtifactAssembly:
    """An artifact that a client is fetching.

    Attributes:
      description: what the server said of it.
      content: its bytes; whole once `complete`.
    """

    def __init__(self, description: messages.Artifact, largest: int):
        """Prepare to receive what the server described, of no more bytes than the `largest`.

        Raises:
          TransportError: the description contradicts itself.
          ConfigurationError: the artifact is larger than what is taken.
        """
        size, step = description.size, description.chunk_bytes
        if size > largest:
            raise ConfigurationError(
                f"the server's model, or its tokenizer, has {size:,} bytes, but this client takes {largest:,} at most; "
                f"its owner may allow more with {setting('largest_download')}"
            )
        if (
            size < 1
            or step < 1
            or len(description.chunk_digests) != -(-size // step)
            or description.digest != _digest(description)
        ):
            raise TransportError("the server's description of a download contradicts itself")
        self.description = description
        self.content = bytearray(size)
        self._received = 0

    @property
    def next_chunk(self) -> int:
        """The number of the chunk to ask for."""
        return self._received

    @property
    def complete(self) -> bool:
        """Whether every chunk is there."""
        return self._received == len(self.description.chunk_digests)

    def add(self, chunk: messages.Chunk) -> None:
        """Take the next chunk.

        Raises:
          TransportError: it is another one, or its content is not what was described.
        """
        number, step = self._received, self.description.chunk_bytes
        if self.complete or chunk.number != number:
            raise TransportError(f"chunk {chunk.number} arrived where chunk {number} was asked for")
        if hashlib.sha256(chunk.data).digest() != self.description.chunk_digests[number]:
            raise TransportError(f"chunk {number} of a download was damaged on the way")
        if len(chunk.data) != min(step, len(self.content) - number * step):
            raise TransportError(f"chunk {number} of a download has {len(chunk.data)} bytes, which were not announced")
        self.content[number * step : number * step + len(chunk.data)] = chunk.data
        self._received += 1


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


def _digest(description: messages.Artifact) -> bytes:
    digest = hashlib.sha256(description.encoding.encode())
    digest.update(_SIZES.pack(description.size, description.chunk_bytes))
    for chunk in description.chunk_digests:
        digest.update(chunk)
    return digest.digest()
