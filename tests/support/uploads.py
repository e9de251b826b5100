"""Uploads that no connection carries."""

from fedlm.fl_core.deployment.protocol.errors import BrokenUploadError


class UploadInParts:
    """An upload that comes as messages: a header, then bytes."""

    def __init__(self, parts):
        self._parts, self._rest = parts, memoryview(b"")

    async def header(self):
        first = await anext(self._parts, None)
        return None if first is None else first.header

    async def read_into(self, space):
        if not self._rest:
            part = await anext(self._parts, None)
            if part is None:
                return 0
            if not part.data:
                raise BrokenUploadError("something else than data follows the header")
            self._rest = memoryview(part.data)
        size = min(len(space), len(self._rest))
        space[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
