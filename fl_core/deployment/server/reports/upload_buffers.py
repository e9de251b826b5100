"""Where uploads wait until they are whole: in memory while a budget lasts, in nameless files beyond it.

So memory does not grow with the number of clients that send at the same time, nor does a slow one keep others waiting.
"""

import asyncio
import contextlib
import mmap
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedlm.fl_core.compression.compressors import Buffer

_ALIGNMENT = 64
_AT_ONCE_TO_MEMORY, _AT_ONCE_TO_DISK = 1 << 21, 1 << 16


class UploadBuffers:
    """Makes buffers within a budget."""

    def __init__(self, budget: int, folder: Path):
        """Begin with a budget of bytes of memory for all uploads together, and a folder for nameless files."""
        self._left, self._folder = budget, folder
        self._used: list[memoryview] = []

    def open(self, size: int) -> "UploadBuffer":
        """Make room for the bytes of an upload, at least one; raises `OSError` where neither memory nor disk has it."""
        if size > self._left:
            return UploadBuffer(size, self, tempfile.TemporaryFile(dir=self._folder))
        self._left -= size
        return UploadBuffer(size, self, None)

    def take_memory(self, size: int) -> memoryview:
        """Hand out memory; what was used before is faster than new."""
        while self._used:
            if len(memory := self._used.pop()) == size:
                return memory
        return _aligned(size)

    def give_back(self, memory: memoryview) -> None:
        """Take the memory of a closed buffer back."""
        self._left += len(memory)
        self._used.append(memory)

    def forget(self) -> None:
        """Free the memory of closed buffers, and what uploads have left in it."""
        self._used.clear()


class UploadBuffer:
    """The bytes of one upload, as they come; a context manager."""

    def __init__(self, size: int, owner: UploadBuffers, file: BinaryIO | None):
        self._size, self._owner, self._file = size, owner, file
        self._memory = owner.take_memory(size) if file is None else memoryview(b"")
        self._passing = bytearray()
        self._map: mmap.mmap | None = None
        self.written = 0

    def __enter__(self) -> "UploadBuffer":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is None:
            self._owner.give_back(self._memory)
        else:
            # What a full disk does not take is not wanted any more.
            with contextlib.suppress(OSError):
                self._file.close()
        self._memory, self._passing, self._map = memoryview(b""), bytearray(), None

    def space(self) -> memoryview:
        """Give room for the bytes that follow; never none, so that more than was declared is noticed."""
        left = self._size - self.written
        if not left:
            return memoryview(bytearray(1))
        if self._file is None:
            return self._memory[self.written : self.written + min(left, _AT_ONCE_TO_MEMORY)]
        self._passing = self._passing or bytearray(min(left, _AT_ONCE_TO_DISK))
        return memoryview(self._passing)[:left]

    async def take(self, count: int) -> bool:
        """Keep so many bytes of `space`; False where the upload has no more. `OSError`: the disk is full."""
        if self.complete:
            return False
        if self._file is not None:
            await asyncio.to_thread(_append, self._file, memoryview(self._passing)[:count])
        self.written += count
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


def _aligned(size: int) -> memoryview:
    """Make memory that JAX takes as it is."""
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].data


def _append(file: BinaryIO, data: memoryview) -> None:
    # Flushed at once, so that a full disk is noticed while the client can still be told.
    file.write(data)
    file.flush()
