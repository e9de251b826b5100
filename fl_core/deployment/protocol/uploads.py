"""Uploads as handlers read them: those that come as messages, and those whose bytes somebody counts."""

from collections.abc import AsyncIterator, Callable

from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.errors import BrokenUploadError
from fedlm.fl_core.deployment.protocol.interface import Upload


class UploadInParts:
    """An upload that comes as messages; a `fedlm.fl_core.deployment.protocol.interface.Upload`."""

    def __init__(self, parts: AsyncIterator[messages.UploadPart]):
        """Prepare to read.

        Args:
          parts: a header, then the upload's bytes in order.
        """
        self._parts, self._rest = parts, memoryview(b"")

    async def header(self) -> messages.UploadHeader | None:
        """See `fedlm.fl_core.deployment.protocol.interface.Upload.header`."""
        first = await anext(self._parts, None)
        return None if first is None or first.WhichOneof("part") != "header" else first.header

    async def read_into(self, space: memoryview) -> int:
        """See `fedlm.fl_core.deployment.protocol.interface.Upload.read_into`."""
        if not self._rest:
            part = await anext(self._parts, None)
            if part is None:
                return 0
            # A copy is made each time that a message's bytes are looked at.
            data = part.data
            if not data:
                raise BrokenUploadError("something else than data follows the header")
            self._rest = memoryview(data)
        size = min(len(space), len(self._rest))
        space[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class CountedUpload:
    """An upload whose bytes are counted as they are read; a `fedlm.fl_core.deployment.protocol.interface.Upload`."""

    def __init__(self, inner: Upload, count: Callable[[int], None]):
        """Stand before another upload.

        Args:
          inner: that is read.
          count: told how many bytes were read, each time; what it raises ends the reading.
        """
        self._inner, self._count = inner, count

    async def header(self) -> messages.UploadHeader | None:
        """See `fedlm.fl_core.deployment.protocol.interface.Upload.header`."""
        return await self._inner.header()

    async def read_into(self, space: memoryview) -> int:
        """See `fedlm.fl_core.deployment.protocol.interface.Upload.read_into`."""
        size = await self._inner.read_into(space)
        self._count(size)
        return size
