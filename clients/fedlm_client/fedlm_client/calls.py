"""What passes between those who train and those who carry calls, within a process."""

from typing import NamedTuple

from . import messages_pb2 as messages


class DownloadRequest(NamedTuple):
    """Which artifact to send, by its digest, and from which chunk on."""

    digest: bytes
    first_chunk: int = 0


class Chunk(NamedTuple):
    """A chunk of an artifact."""

    number: int
    data: bytes


class UploadPart(NamedTuple):
    """A part of an upload, which is a header and then its bytes."""

    header: messages.UploadHeader | None = None
    data: bytes = b""
