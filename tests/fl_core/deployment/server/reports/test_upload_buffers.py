import asyncio
import contextlib
import os
from types import SimpleNamespace

import pytest

from fedlm.fl_core.deployment.server.reports import upload_buffers
from fedlm.fl_core.deployment.server.reports.upload_buffers import DiskRoom, UploadBuffers


async def put(buffer, piece):
    """Put bytes where the buffer has space for them; whether all belong to it."""
    while piece:
        space = buffer.space()
        taken = min(len(space), len(piece))
        space[:taken], piece = piece[:taken], piece[taken:]
        if not await buffer.take(taken):
            return False
    return True


def fill(buffers, pieces, size):
    async def go():
        with buffers.open(size) as buffer:
            fitted = [await put(buffer, piece) for piece in pieces]
            return fitted, buffer.complete, bytes(buffer.content()) if buffer.complete else None

    return asyncio.run(go())


def test_memory_beyond_the_budget_is_on_disk_and_both_hold_the_same(tmp_path):
    buffers = UploadBuffers(10, DiskRoom(tmp_path))
    with buffers.open(8) as first:
        assert first._file is None
        with buffers.open(8) as second:
            assert second._file is not None
            assert list(tmp_path.iterdir()) == [], "a file with a name would outlive a crash"
        assert fill(buffers, [b"abc", b"defgh"], 8) == ([True, True], True, b"abcdefgh")
    assert fill(buffers, [b"abc", b"defgh"], 8) == ([True, True], True, b"abcdefgh")
    with buffers.open(10) as whole:
        assert whole._file is None, "the budget did not come back"


def test_more_than_was_declared_does_not_fit(tmp_path):
    for budget in (0, 100):
        assert fill(UploadBuffers(budget, DiskRoom(tmp_path)), [b"abc", b"d"], 3) == ([True, False], True, b"abc")
        assert fill(UploadBuffers(budget, DiskRoom(tmp_path)), [b"abc"], 4) == ([True], False, None)


def test_no_upload_is_left_in_memory_once_a_round_is_over(tmp_path):
    buffers = UploadBuffers(10, DiskRoom(tmp_path))
    assert fill(buffers, [b"secret"], 6)[2] == b"secret"
    buffers.forget()
    with buffers.open(6) as buffer:
        assert buffer.content() == bytes(6)


SIZE, KEPT = 1 << 18, 1 << 20


class Disk:
    """A disk of so many bytes, of which the nameless files of a folder take some."""

    def __init__(self, folder, size):
        self._folder, self._size = str(folder), size

    def disk_usage(self, path):
        assert str(path) == self._folder
        return SimpleNamespace(free=self._size - self.used())

    def used(self):
        used = {}
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith(self._folder + "/"):
                    found = os.stat(f"/proc/self/fd/{number}")
                    used[found.st_ino] = found.st_size
        return sum(used.values())


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk that has room for eight uploads beside what is kept, and a clock."""
    found = Disk(tmp_path, KEPT + 8 * SIZE)
    monkeypatch.setattr(upload_buffers, "shutil", found)
    found.now = 0.0
    monkeypatch.setattr(upload_buffers, "_now", lambda: found.now)
    return found


async def test_uploads_that_stand_still_leave_the_database_and_the_next_checkpoint_their_room(tmp_path, disk):
    buffers = UploadBuffers(0, DiskRoom(tmp_path, KEPT))
    with contextlib.ExitStack() as opened:
        begun = []
        for _ in range(44):
            with contextlib.suppress(OSError):
                begun.append(opened.enter_context(buffers.open(SIZE)))
        assert len(begun) == 8
        # What is promised to uploads under way is given to nobody else, whether it has come or not.
        assert await put(begun[0], bytes(SIZE))
        for stalled in begun[1:]:
            assert await put(stalled, bytes(SIZE // 2))
        with pytest.raises(OSError, match="No space left"):
            buffers.open(SIZE)
        assert disk.disk_usage(tmp_path).free >= KEPT

        disk.now = 11.0
        with buffers.open(SIZE) as honest:
            assert await put(honest, bytes(SIZE // 2))
            with pytest.raises(OSError, match="No space left"):
                await put(begun[1], bytes(SIZE // 2))
            # Who goes on has its room, and so has what is whole.
            for going_on in begun[2:]:
                assert await put(going_on, bytes(SIZE // 2))
            assert await put(honest, bytes(SIZE // 2))
            assert all(one.complete for one in (begun[0], *begun[2:], honest))
            assert len(begun[0].content()) == SIZE
            disk.now = 99.0
            with pytest.raises(OSError, match="No space left"):
                buffers.open(SIZE)
            assert disk.disk_usage(tmp_path).free == KEPT
    assert disk.used() == 0
    with contextlib.ExitStack() as opened:
        assert len([opened.enter_context(buffers.open(SIZE)) for _ in range(8)]) == 8, "room that did not come back"
