"""What is said where a file cannot be written, and what is added at its end."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from fedlm.fl_core.atomic_files import AppendedError, append_whole, disk_errors
from fedlm.fl_core.errors import DiskError


def test_too_many_open_files_are_not_taken_for_a_full_disk():
    for number, said in ((errno.EMFILE, "ulimit -n"), (errno.ENFILE, "ulimit -n"), (errno.ENOSPC, "Make room")):
        with pytest.raises(DiskError) as found, disk_errors(Path("file")):
            raise OSError(number, os.strerror(number))
        assert said in str(found.value)
        assert ("Make room" in str(found.value)) == (number == errno.ENOSPC)


def test_whole_lines_of_another_are_not_written_over_and_nobody_adds_between_look_and_write(tmp_path, monkeypatch):
    path, look = tmp_path / "log", os.pread
    with path.open("w+b") as mine, path.open("r+b") as others:

        def pread(*words):
            with pytest.raises(BlockingIOError):
                fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return look(*words)

        monkeypatch.setattr(os, "pread", pread)
        end = append_whole(mine.fileno(), b"one\n", 0)
        os.pwrite(mine.fileno(), b"half a li", end)
        assert append_whole(mine.fileno(), b"two\n", end) == 8
        for seen in (0, end, 9):
            with pytest.raises(AppendedError):
                append_whole(mine.fileno(), b"three\n", seen)
        fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.read_bytes() == b"one\ntwo\n"
