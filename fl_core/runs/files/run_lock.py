"""Only one process at a time may write into the folder of a run."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedlm.fl_core.errors import ConfigurationError, setting

LOCK_FILE = ".lock"


class FolderLock:
    """The lock of a folder, which is there; the operating system lets go of it when the process ends, however it ends.

    Attributes:
      directory: the folder.
      held: whether this process holds it.
      name: the same for all processes whom one kernel keeps from holding it at once, and for no others.
    """

    def __init__(self, directory: Path):
        """Name the folder, and hold nothing yet."""
        self.directory, self.held = directory, False
        self._file = (directory / LOCK_FILE).open("w")
        found, start = os.fstat(self._file.fileno()), Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.name = hashlib.sha256(f"{start} {found.st_dev} {found.st_ino}".encode()).hexdigest()

    def try_to_take(self) -> bool:
        """Take it unless another process holds it; returns whether this one does."""
        if not self.held:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.held = True
            except BlockingIOError:
                return False
        return True

    def let_go(self) -> None:
        """Hold it no more."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Let go for good."""
        self._file.close()


def folder_is_taken(directory: Path, instead: str) -> ConfigurationError:
    """Make the error of a folder in which another process is running; it says to give another of `instead`."""
    return ConfigurationError(
        f"{directory}: another process is running there; wait for it or end it, or give another {instead}"
    )


@contextmanager
def run_lock(directory: Path, wait_seconds: float = 10.0, instead: str = setting("out")) -> Iterator[None]:
    """Hold the folder of a run. Raises ConfigurationError where another process holds it for longer than `wait_seconds`
    seconds; see `folder_is_taken`."""
    deadline = time.monotonic() + wait_seconds
    with closing(FolderLock(directory)) as lock:
        while not lock.try_to_take():
            if time.monotonic() > deadline:
                raise folder_is_taken(directory, instead)
            time.sleep(0.1)
        yield
