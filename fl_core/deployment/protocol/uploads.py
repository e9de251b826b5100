"""Uploads as handlers read them, whose bytes somebody counts."""

from collections.abc import Callable

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.interface import Upload


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
