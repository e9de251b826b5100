"""Files that are whole or not there, and that one process has at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import ClientError


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
        # Else a failure of power may bring back what was there before.
        sync_to_disk(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def keep_own(path: Path, content: str | bytes) -> None:
    """Write what a device keeps for itself, see `replace_whole`. Raises ClientError where it cannot be written."""
    try:
        replace_whole(path, content, private=True)
    except OSError as error:
        raise ClientError(
            f"{path}: cannot be written ({error}), so that this device does not take part; make room, or permit "
            "writing there"
        ) from error


def write_synced(path: Path, content: str | bytes, flags: int, mode: int) -> None:
    """Write a file that is opened with flags, and made with a mode, and wait until it is on the disk."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | flags, mode), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def sync_to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held_alone(
    record: Path, instead: str = "another file with --record, if this one is another device"
) -> Iterator[None]:
    """Hold the record of a client, and what lies beside it, until this process ends, however it ends.

    Args:
      record: the file, or the folder of several clients' records.
      instead: what else may be named.

    Raises:
      ClientError: another process holds it, or its folder cannot be written.
    """
    path = record.with_name(record.name + ".lock")
    with contextlib.ExitStack() as held:
        try:
            file = held.enter_context(open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClientError(
                f"{record}: another client counts its rounds there now; end that one, or name {instead}"
            ) from error
        except OSError as error:
            raise ClientError(
                f"{path}: cannot be written ({error}), so that this device does not take part; make room, or permit "
                f"writing there, or name {instead}"
            ) from error
        yield
