"""What a command says where something fails that its code did not foresee: a line, and a file with the traceback."""

import errno
import os
import platform
import tempfile
import traceback
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from fedlm.command_line.user_folders import user_folder

# A user named the place, or the machine's owner closed it. Other errors, of a missing file for one, may be defects.
_OF_THE_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip


def versions() -> str:
    """Say in a line which fedlm this is, and what it runs on."""
    return f"fedlm {version('fedlm')}, Python {platform.python_version()}, jax {version('jax')}, {platform.platform()}"


def complaint_about_place(error: Exception) -> str | None:
    """Say in a line which file or folder of the user cannot be used, and why; None where the error is another."""
    if not isinstance(error, OSError) or error.filename is None or error.errno not in _OF_THE_PLACE:
        return None
    return f"{error.filename}: {error.strerror}; give another path, or mend this one"


def is_full_disk(error: Exception) -> bool:
    """Say whether a disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def kept_failure(error: Exception, words: list[str]) -> str:
    """Keep the traceback in a file that only this user reads; returns the line that says so."""
    what = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
    memory = "; this machine has too little memory for it, or fedlm takes too much" * isinstance(error, MemoryError)
    text = f"{versions()}\n{' '.join(words)}\n\n{''.join(traceback.format_exception(error))}"
    try:
        kept = f"The traceback is in {_kept(text)}, to report it with"
    except OSError as failed:
        kept = f"The traceback cannot be kept ({failed})"
    blame = "fedlm knows no mistake of yours that explains it"
    return f"failed: {what}{memory}. {blame}. {kept}; `fedlm --debug` prints it"


def _kept(text: str) -> Path:
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-"
    try:
        folder = user_folder("XDG_STATE_HOME", ".local/state")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, path = tempfile.mkstemp(".log", name, folder)
    except (OSError, RuntimeError):  # of which the last means that there is no home
        number, path = tempfile.mkstemp(".log", name)
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(path)
