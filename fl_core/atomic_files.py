"""Files that are whole or not there."""

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, private: bool = False) -> None:
    """Write a file beside its place, sync it and rename it, so that it is never seen half-written.

    Args:
      path: where the content goes.
      content: text, written as UTF-8, or bytes.
      private: let nobody but its owner read it, at any moment.
    """
    beside = path.with_name(path.name + ".partial")
    if private:
        # One that a crash left behind may have been made for others to read.
        beside.unlink(missing_ok=True)
    _write(beside, content, os.O_TRUNC, 0o600 if private else 0o666)
    beside.replace(path)


def create_privately(path: Path, content: str | bytes) -> None:
    """Write a file as `write_atomically` does, for its owner alone, unless there is one: of several writers, one wins.

    Args:
      path: where the content goes.
      content: text, written as UTF-8, or bytes.

    Raises:
      FileExistsError: it is there already, and stays as it is.
    """
    beside = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        _write(beside, content, os.O_EXCL, 0o600)
        os.link(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
    sync_to_disk(path.parent)


def _write(path: Path, content: str | bytes, flags: int, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | flags, mode), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def sync_to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk.

    Args:
      path: of either.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
