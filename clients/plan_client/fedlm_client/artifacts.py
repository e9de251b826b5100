"""Bytes named by their content, put together from chunks that are checked one by one."""

import hashlib
import struct

from fedlm_client import messages_pb2 as messages
from fedlm_client.errors import ClientError, TransportError
from fedlm_client.limits import Limits

LARGEST_CHUNK = 4 << 20
_SIZES = struct.Struct("<QI")


class Assembly:
    """A download, which goes on where it broke off.

    Attributes:
      digest: that it is asked for by.
      content: its bytes; whole once `complete`.
    """

    def __init__(self, description: "messages.Artifact", limits: Limits, name: str):
        """Prepare for what the server described, of no more bytes than the limit of a name.

        Raises:
          TransportError: the description contradicts itself.
          ClientError: it has more bytes.
        """
        size, step, digests = description.size, description.chunk_bytes, description.chunk_digests
        if size > getattr(limits, name):
            raise ClientError(
                f"the server offers a download of {size:,} bytes, but this client takes {getattr(limits, name):,} at "
                f"most; its owner may allow more with --{name.replace('_', '-')}"
            )
        named = hashlib.sha256(description.encoding.encode() + _SIZES.pack(size, step) + b"".join(digests)).digest()
        if size < 1 or not 0 < step <= LARGEST_CHUNK or len(digests) != -(-size // step) or named != description.digest:
            raise TransportError("the server's description of a download contradicts itself")
        self.digest, self.content = description.digest, bytearray()
        self._size, self._step, self._digests = size, step, list(digests)
        self._rest = bytearray()

    @property
    def next_chunk(self) -> int:
        """The number of the chunk to ask for."""
        return len(self.content) // self._step

    @property
    def complete(self) -> bool:
        """Whether all is there."""
        return len(self.content) == self._size

    def begin(self) -> None:
        """Forget the part of a chunk that came before a connection broke."""
        self._rest.clear()

    def add(self, data: bytes) -> None:
        """Take bytes that follow; raises TransportError where a chunk is not the one that was described."""
        self._rest += data
        while not self.complete and len(self._rest) >= (wanted := min(self._step, self._size - len(self.content))):
            chunk = bytes(self._rest[:wanted])
            del self._rest[:wanted]
            if hashlib.sha256(chunk).digest() != self._digests[self.next_chunk]:
                raise TransportError(f"chunk {self.next_chunk} of a download was damaged on the way")
            self.content += chunk
        if self.complete and self._rest:
            raise TransportError("the server sends more than it announced")
