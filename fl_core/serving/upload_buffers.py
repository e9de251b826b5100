"""Where uploads wait until they are whole: in memory while a budget lasts, in nameless files beyond it.

So memory does not grow with the number of clients that send at the same time, nor does a slow one keep others waiting.
"""

import asyncio
import contextlib
import mmap
import tempfile
from pathlib import Path
from typing import BinaryIO

from fl_core.compression import Buffer


class UploadBuffers:
    """Makes buffers within a budget."""

    def __init__(self, budget: int, folder: Path):
        """Begin with the whole budget.

        Args:
          budget: bytes of memory for all uploads together.
          folder: for files; they have no names, and are gone when the process is.
        """
        self._left, self._folder = budget, folder

    def open(self, size: int) -> "UploadBuffer":
        """Make room for an upload.

        Args:
          size: its bytes, at least 1.

        Returns:
          The buffer; close it.

        Raises:
          OSError: neither memory nor disk has room.
        """
        if size > self._left:
            return UploadBuffer(size, self, tempfile.TemporaryFile(dir=self._folder))
        self._left -= size
        return UploadBuffer(size, self, None)

    def give_back(self, size: int) -> None:
        """Take the memory of a closed buffer back."""
        self._left += size


class UploadBuffer:
    """The bytes of one upload, as they come; a context manager."""

    def __init__(self, size: int, owner: UploadBuffers, file: BinaryIO | None):
        """Prepare for the first bytes; see `UploadBuffers.open`."""
        self._size, self._owner, self._file = size, owner, file
        self._memory = bytearray(size) if file is None else bytearray()
        self._map: mmap.mmap | None = None
        self.written = 0

    def __enter__(self) -> "UploadBuffer":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is None:
            self._owner.give_back(self._size)
        else:
            # What a full disk does not take is not wanted any more.
            with contextlib.suppress(OSError):
                self._file.close()
        self._memory, self._map = bytearray(), None

    async def write(self, data: bytes) -> bool:
        """Add bytes.

        Args:
          data: what follows what was written so far.

        Returns:
          Whether they fit; nothing is written where they do not.

        Raises:
          OSError: the disk is full.
        """
        end = self.written + len(data)
        if end > self._size:
            return False
        if self._file is None:
            self._memory[self.written : end] = data
        else:
            await asyncio.to_thread(_append, self._file, data)
        self.written = end
        return True

    @property
    def complete(self) -> bool:
        """Whether all bytes are there."""
        return self.written == self._size

    def content(self) -> Buffer:
        """Give all bytes; they go when the buffer is closed."""
        if self._file is None:
            return self._memory
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
        return memoryview(self._map)


def _append(file: BinaryIO, data: bytes) -> None:
    # Flushed at once, so that a full disk is noticed while the client can still be told.
    file.write(data)
    file.flush()
