"""Uploads as handlers read them: those that come as messages, and those whose bytes somebody counts."""

from collections.abc import AsyncIterator, Callable

from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.errors import BrokenUploadError
from fedlm.fl_core.deployment.protocol.interface import Upload


class UploadInParts:
    """A `fedlm.fl_core.deployment.protocol.interface.Upload` that comes as messages: a header, then bytes."""

    def __init__(self, parts: AsyncIterator[messages.UploadPart]):
        self._parts, self._rest = parts, memoryview(b"")

    async def header(self) -> messages.UploadHeader | None:
        first = await anext(self._parts, None)
        return None if first is None or first.WhichOneof("part") != "header" else first.header

    async def read_into(self, space: memoryview) -> int:
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
    """An upload that tells `count` how many bytes were read, each time; what that raises ends the reading."""

    def __init__(self, inner: Upload, count: Callable[[int], None]):
        self._inner, self._count = inner, count

    async def header(self) -> messages.UploadHeader | None:
        return await self._inner.header()

    async def read_into(self, space: memoryview) -> int:
        size = await self._inner.read_into(space)
        self._count(size)
        return size
