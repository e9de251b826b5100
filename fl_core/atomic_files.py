"""Files that are whole or not there."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from fedlm.fedlm_client.files import replace_whole, sync_to_disk, write_synced
from fedlm.fl_core.errors import ConfigurationError, DiskError, setting

Fence = Callable[[], AbstractContextManager[None]]
"""Makes a context within which a process writes that others may take over from: nobody does until it is over."""


class AppendedError(OSError):
    """A file does not end where who would add to it last saw its end."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn any OSError of writing `path` into a DiskError that says what to do; a full disk is not the only reason."""
    try:
        yield
    except AppendedError as error:
        raise DiskError(f"{path}: {error}") from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise DiskError(
                f"{path}: cannot be written: {error}. Raise the limit on open files (`ulimit -n`), then give the same "
                "command again."
            ) from error
        raise DiskError(
            f"{path}: cannot be written: {error}. Make room or permit writing there, then give the same command again."
        ) from error


def make_folder(path: Path, private: bool = False) -> None:
    """Make a folder, and those that it is in, where it is not there yet.

    Args:
      path: of the folder.
      private: let nobody but its owner look into it.

    Raises:
      ConfigurationError: no folder can be there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    except FileExistsError:
        raise ConfigurationError(f"{path}: is a file, but must be a folder, or a place for one; give another") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: no folder can be made there ({error.strerror}); give another") from error


def write_atomically(path: Path, content: str | bytes, private: bool = False) -> None:
    """Write a file beside its place, sync it and rename it, so that it is never seen half-written.

    Args:
      path: where the content goes.
      content: text, written as UTF-8, or bytes.
      private: let nobody but its owner read it, at any moment.

    Raises:
      DiskError: it cannot be written, and is as it was.
    """
    with disk_errors(path):
        replace_whole(path, content, private)


def create_privately(path: Path, content: str | bytes) -> None:
    """Write a file as `write_atomically` does, for its owner alone, unless there is one: of several writers, one wins.

    Raises:
      FileExistsError: it is there already, and stays as it is.
    """
    beside = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        write_synced(beside, content, os.O_EXCL, 0o600)
        os.link(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
    sync_to_disk(path.parent)


def append_whole(descriptor: int, content: bytes, end: int, synced: bool = True) -> int:
    """Write at the end of a file all of something, or nothing.

    The file is locked meanwhile, by `flock`: whoever adds to it sees what others added before, even those that have
    lost their lead.

    Args:
      descriptor: of the file, open for reading and writing.
      content: what to write.
      end: where the file's content ends; the beginning of a line beyond it is dropped.
      synced: whether it is on disk when this returns.

    Returns:
      Where it ends now.

    Raises:
      AppendedError: there are whole lines beyond the end, or the file is shorter; it is as it was.
      OSError: the disk refuses.
    """
    written = 0
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        beyond = os.fstat(descriptor).st_size - end
        if beyond < 0 or b"\n" in os.pread(descriptor, beyond, end):
            raise AppendedError("another process has added records since this one read it")
        os.ftruncate(descriptor, end)
        try:
            # A disk that fills up may take a part of what it is given, without an error.
            while written < len(content):
                written += os.pwrite(descriptor, content[written:], end + written)
            if synced:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    return end + written


def move_into_place(made: Path, out: Path, aside: Path) -> None:
    """Rename a file or folder, and sync its new place; what was there before is replaced.

    A folder cannot be renamed over a full one: the old one steps aside, and is the caller's to remove.
    """
    if out.is_dir():
        os.rename(out, aside)
        try:
            os.rename(made, out)
        except OSError:
            os.rename(aside, out)
            raise
    else:
        os.replace(made, out)
    sync_to_disk(out.parent)


def refuse_filled(out: Path) -> None:
    """Raise ConfigurationError where there is something at `out`, which is to be a new folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out}: is there already; give {setting('out')} a folder that is not, or is empty")


@contextlib.contextmanager
def whole_folder(out: Path, mode: int = 0o755) -> Iterator[Path]:
    """Give a folder beside `out` to write into, and move it there, synced, once it is whole; an old `out` goes. It has
    this mode there.

    Raises:
      DiskError: it cannot be written, and `out` is as it was.
    """
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        aside = made.with_name(made.name + "-replaced")
        try:
            yield made
            for path in made.rglob("*"):
                if path.is_file():
                    sync_to_disk(path)
            made.chmod(mode)
            move_into_place(made, out, aside)
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            shutil.rmtree(made, ignore_errors=True)
