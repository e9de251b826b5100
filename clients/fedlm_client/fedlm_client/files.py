"""Files that are whole or not there."""

import contextlib
import os
from pathlib import Path


def replace_whole(path: Path, content: str | bytes, private: bool = False) -> None:
    """Write a file beside its place, sync it and rename it, so that it is never seen half-written.

    Args:
      path: where the content goes.
      content: text, written as UTF-8, or bytes.
      private: let nobody but its owner read it, at any moment.

    Raises:
      OSError: it cannot be written, and is as it was.
    """
    beside = path.with_name(path.name + ".partial")
    if private:
        # One that a crash left behind may have been made for others to read.
        beside.unlink(missing_ok=True)
    try:
        write_synced(beside, content, os.O_TRUNC, 0o600 if private else 0o666)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def write_synced(path: Path, content: str | bytes, flags: int, mode: int) -> None:
    """Write a file that is opened with flags, and made with a mode, and wait until it is on the disk."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | flags, mode), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
