"""Only one process at a time may write into the folder of a run."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlm.fl_core.errors import ConfigurationError, setting

LOCK_FILE = ".lock"


@contextmanager
def run_lock(directory: Path, wait_seconds: float = 10.0, instead: str = setting("out")) -> Iterator[None]:
    """Hold the folder of a run; the operating system lets go of it when the process ends, however it ends. Raises
    ConfigurationError where another process holds it for longer than `wait_seconds` seconds; it says to give another
    of `instead`."""
    deadline = time.monotonic() + wait_seconds
    with (directory / LOCK_FILE).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"{directory}: another process is running there; wait for it or end it, or give another "
                        f"{instead}"
                    ) from None
                time.sleep(0.1)
        yield
