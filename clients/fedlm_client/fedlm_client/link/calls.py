"""What is asked for and comes of a download, within a process."""

from typing import NamedTuple


class DownloadRequest(NamedTuple):
    """Which artifact to send, by its digest, and from which chunk on."""

    digest: bytes
    first_chunk: int = 0


class Chunk(NamedTuple):
    """A chunk of an artifact."""

    number: int
    data: bytes
