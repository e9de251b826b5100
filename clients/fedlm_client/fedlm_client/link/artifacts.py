"""Bytes named by their content, which a client fetches chunk by chunk, checks and puts together.

Each chunk has a SHA-256 of its own, so a download goes on where it broke off, and a changed byte is found at once. The
artifact's digest is over its sizes and all chunks' digests.
"""

import hashlib
import struct

from .. import messages_pb2 as messages
from ..errors import ClientError, TransportError
from .calls import Chunk
from .protocol import LARGEST_CHUNK

_SIZES = struct.Struct("<QI")


class ArtifactAssembly:
    """An artifact that a client is fetching.

    Attributes:
      description: what the server said of it.
      content: its bytes; whole once `complete`.
    """

    def __init__(self, description: messages.Artifact, largest: int, option: str = "largest_download"):
        """Prepare to receive what the server described, of no more bytes than the `largest`, which an option sets.

        Raises:
          TransportError: the description contradicts itself.
          ClientError: the artifact is larger than what is taken.
        """
        size, step = description.size, description.chunk_bytes
        if size > largest:
            raise ClientError(
                f"the server offers a download of {size:,} bytes, but this client takes {largest:,} at most; its owner "
                f"may allow more with --{option.replace('_', '-')}"
            )
        if (
            size < 1
            or not 0 < step <= LARGEST_CHUNK
            or len(description.chunk_digests) != -(-size // step)
            or description.digest != digest_of(description)
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

    def add(self, chunk: Chunk) -> None:
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


def digest_of(description: messages.Artifact) -> bytes:
    """Name an artifact by what describes it."""
    digest = hashlib.sha256(description.encoding.encode())
    digest.update(_SIZES.pack(description.size, description.chunk_bytes))
    for chunk in description.chunk_digests:
        digest.update(chunk)
    return digest.digest()
