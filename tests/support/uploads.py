"""Uploads that no connection carries."""


class UploadInPieces:
    """An upload whose header is there, and whose bytes come in pieces."""

    def __init__(self, header, pieces):
        self._header, self._pieces, self._rest = header, pieces, memoryview(b"")

    async def header(self):
        return self._header

    async def read_into(self, space):
        if not self._rest:
            self._rest = memoryview(await anext(self._pieces, b""))
        size = min(len(space), len(self._rest))
        space[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


async def pieces_of(content, step=1 << 15):
    for at in range(0, len(content), step):
        yield content[at : at + step]
