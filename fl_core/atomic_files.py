"""Files that are whole or not there."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file beside its place, sync it and rename it, so that it is never seen half-written.

    Args:
      path: where the content goes.
      content: text, written as UTF-8, or bytes.
    """
    beside = path.with_name(path.name + ".partial")
    with beside.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


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
