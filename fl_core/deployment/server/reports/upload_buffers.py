"""Where uploads wait until they are whole: in memory while a budget lasts, in nameless files beyond it.

So memory does not grow with the number of clients that send at the same time, nor does a slow one keep others waiting.
Files take no room that the disk must keep. Where they have none left, an upload that stands still gives way to a newer.
"""

import asyncio
import contextlib
import errno
import mmap
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from fedlm.fl_core.updates.compressors import Buffer

_ALIGNMENT = 64
_AT_ONCE_TO_MEMORY, _AT_ONCE_TO_DISK = 1 << 21, 1 << 20
_STANDS_STILL_SECONDS = 10.0
_now = time.monotonic


class DiskRoom(NamedTuple):
    """A folder for reports, on a disk of which the database and the next checkpoint need some."""

    folder: Path
    kept: int = 0  # bytes of its disk that reports leave alone

    def left(self) -> int:
        """Say how many bytes reports may take yet."""
        return shutil.disk_usage(self.folder).free - self.kept


class UploadBuffers:
    """Makes buffers within a budget."""

    def __init__(self, budget: int, room: DiskRoom):
        """Begin with a budget of bytes of memory for all uploads together, and room for nameless files."""
        self._left, self._room = budget, room
        self._used: list[memoryview] = []
        # Those in files, which went on longest ago first, and how many bytes of them are still to come.
        self._in_files: dict[UploadBuffer, None] = {}
        self._to_come = 0

    def open(self, size: int) -> "UploadBuffer":
        """Make room for the bytes of an upload, at least one; raises `OSError` where neither memory nor disk has it."""
        if size > self._left:
            self._make_room(size)
            file = tempfile.TemporaryFile(dir=self._room.folder)  # noqa: SIM115
            buffer = UploadBuffer(size, self, file)
            self._in_files[buffer] = None
            self._to_come += size
            return buffer
        self._left -= size
        return UploadBuffer(size, self, None)

    def _make_room(self, size: int) -> None:
        """Have room in files for so many bytes; raises `OSError` where there is none."""
        while size > self._room.left() - self._to_come:
            still = next((one for one in self._in_files if not one.complete), None)
            if still is None or not still.stands_still:
                raise no_room()
            still.give_way()

    def went_on(self, buffer: "UploadBuffer", count: int) -> None:
        """Note that so many bytes of an upload are in its file."""
        self._to_come -= count
        self._in_files[buffer] = self._in_files.pop(buffer)

    def ended(self, buffer: "UploadBuffer", missing: int) -> None:
        """Note that an upload needs its file no more, of which so many bytes have not come."""
        if buffer in self._in_files:
            del self._in_files[buffer]
            self._to_come -= missing

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
    """The bytes of one upload, as they come; a context manager.

    Attributes:
      size: bytes of the upload.
      written: bytes of these that have come.
      gave_way: whether another upload has its room.
    """

    def __init__(self, size: int, owner: UploadBuffers, file: BinaryIO | None):
        self.size, self._owner, self._file = size, owner, file
        self._memory = owner.take_memory(size) if file is None else memoryview(b"")
        self._passing = bytearray()
        self._map: mmap.mmap | None = None
        self.written = 0
        self._went_on, self._writing, self.gave_way = _now(), False, False

    def __enter__(self) -> "UploadBuffer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the bytes."""
        if self._file is None:
            self._owner.give_back(self._memory)
        else:
            self._close(self._file)
        self._memory, self._passing, self._map = memoryview(b""), bytearray(), None

    @property
    def stands_still(self) -> bool:
        """Whether nothing has come for a while."""
        return not self._writing and _now() - self._went_on >= _STANDS_STILL_SECONDS

    def give_way(self) -> None:
        """Let another upload have the room; what comes of this one is refused."""
        self.gave_way = True
        assert self._file is not None
        self._close(self._file)

    def _close(self, file: BinaryIO) -> None:
        # What a full disk does not take is not wanted any more.
        with contextlib.suppress(OSError):
            file.close()
        self._owner.ended(self, self.size - self.written)

    def space(self) -> memoryview:
        """Give room for the bytes that follow; never none, so that more than was declared is noticed."""
        left = self.size - self.written
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
        if self.gave_way:
            raise no_room()
        if self._file is not None:
            self._writing, data = True, memoryview(self._passing)[:count]
            writing = asyncio.ensure_future(asyncio.to_thread(_write, self._file, data, self.written))
            try:
                await asyncio.shield(writing)
            finally:
                # Where the connection is lost meanwhile, nobody else may use the file before this has ended.
                await asyncio.wait({writing})
                self._writing, self._went_on = False, _now()
            self._owner.went_on(self, count)
        self.written += count
        return True

    @property
    def complete(self) -> bool:
        """Whether all bytes are there."""
        return self.written == self.size

    def content(self) -> Buffer:
        """Give all bytes; they go when the buffer is closed."""
        if self._file is None:
            return self._memory
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ)
        return memoryview(self._map)


def no_room() -> OSError:
    """Make the error of a disk without room."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _aligned(size: int) -> memoryview:
    """Make memory that JAX takes as it is."""
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].data


def _write(file: BinaryIO, data: memoryview, place: int) -> None:
    file.seek(place)
    # Flushed at once, so that a full disk is noticed while the client can still be told.
    file.write(data)
    file.flush()
