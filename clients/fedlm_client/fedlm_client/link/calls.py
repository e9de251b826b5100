"""What a process says of downloads and uploads, before they are bytes of a connection."""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

_AT_ONCE = 1 << 18


class DownloadRequest(NamedTuple):
    """Which artifact to send, by its digest, and from which chunk on."""

    digest: bytes
    first_chunk: int = 0


class Chunk(NamedTuple):
    """A chunk of an artifact."""

    number: int
    data: bytes


async def in_pieces(upload: bytes, before: Callable[[], None], first: int = 0) -> AsyncIterator[bytes]:
    """Yield an upload piece by piece, from a byte on; `before` the first, something is done. Nothing is done before one
    of no bytes."""
    # A server that wants nothing of an update is sent nothing.
    if upload:
        before()
    for start in range(first, len(upload), _AT_ONCE):
        yield upload[start : start + _AT_ONCE]
