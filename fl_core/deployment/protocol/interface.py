"""What a transport must do: carry five calls from clients (`fedlm.fedlm_client.training.Channel`) to handlers.

Clients dial in and the server never does. Messages are those of `messages.proto`, whatever carries them. Every handler
may raise `RefusedError` or `TooManyCallsError`.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.calls import DownloadRequest
from fedlm.fl_core.deployment.protocol.artifacts import ServedChunk


class Upload(Protocol):
    """An upload that arrives at the server. The client sends no byte of it before that is read."""

    async def header(self) -> messages.UploadHeader | None:
        """Wait for what precedes the bytes, once, and first; None where something else came.

        Raises:
          MalformedError: what came is no message.
        """
        ...

    async def read_into(self, space: memoryview) -> int:
        """Wait for some of the bytes that follow, and say how many came; 0 after the last.

        Raises:
          MalformedError: what came is no message.
          BrokenUploadError: the upload breaks off, or something else is in it.
        """
        ...


class CountedUpload:
    """An upload that tells `count` how many bytes were read, each time; what that raises ends the reading."""

    def __init__(self, inner: Upload, count: Callable[[int], None]):
        self._inner, self._count = inner, count

    async def header(self) -> messages.UploadHeader | None:
        return await self._inner.header()

    async def read_into(self, space: memoryview) -> int:
        size = await self._inner.read_into(space)
        self._count(size)
        return size


class RunHandlers(Protocol):
    """What answers for runs; `peer` names the client and, with credentials, proves who it is."""

    async def check_in(self, peer: str, request: messages.CheckInRequest) -> messages.CheckInReply:
        """Select a client for a round, or tell it when to come back."""
        ...

    def download(
        self, peer: str, request: DownloadRequest, bytes_at_once: int = 0
    ) -> AsyncGenerator[ServedChunk, None]:
        """Send the chunks of an artifact; the next one is wanted when one is on its way.

        Args:
          peer: identity of the client.
          request: which artifact, and from which chunk on.
          bytes_at_once: of chunks that are sent together; where it is 0, each by itself.

        Raises:
          UnknownArtifactError: there is no such artifact or chunk now.
        """
        ...

    async def upload(self, peer: str, upload: Upload) -> messages.UploadReply:
        """Receive a report; the answer says whether it counts, and if not, why."""
        ...

    async def secure_sum(self, peer: str, request: messages.SecureRequest) -> messages.SecureReply:
        """Answer a member of a secure sum."""
        ...


class Handlers(RunHandlers, Protocol):
    """The server's side, which a transport calls."""

    async def log(self, peer: str, request: messages.LogRequest) -> messages.LogReply:
        """Show what the server's log has of a run."""
        ...
