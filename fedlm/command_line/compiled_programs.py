"""Compiled programs of one command are there for the next: JAX keeps them in the user's cache folder."""

import hashlib
import os
import platform
import shutil
import stat
import time
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

from fedlm.command_line.user_folders import user_folder

MOST_BYTES = 512 * 2**20
"""The least recently used beyond this are removed when a command begins."""
LEAST_FREE = 1024 * 2**20
"""With less room than this on the disk none are kept."""
_CHOICES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE")
_NO = ("0", "n", "no", "f", "false", "off")  # as JAX reads them
_LOOKED_AT = "looked-at"
_WRITING_SECONDS = 60.0


def keep_compiled_programs() -> None:
    """Let JAX keep compiled programs below the user's cache folder, unless its environment variables say otherwise.

    Call it before JAX is imported. Processes that this one starts keep theirs there too. Where the folder cannot be
    used, or others can write to it, none are kept: who writes a program there decides what later commands run.
    """
    if any(name in os.environ for name in _CHOICES):
        return
    if os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in _NO:
        return
    try:
        folder = user_folder("XDG_CACHE_HOME", ".cache") / "compiled" / _processor()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours_alone(folder) or shutil.disk_usage(folder).free < LEAST_FREE:
            return
        _tidy(folder)
    except (OSError, RuntimeError):  # of which the last means that there is no home
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    # Small programs are many: without them the first round takes as long as without the folder.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    # A program that cannot be read or written is compiled, and that is all.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def _processor() -> str:
    """Name the kind of processor: machines that share a home need not know each other's instructions."""
    lines = [platform.machine(), platform.processor()]
    with suppress(OSError):
        told = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
        lines += [line for line in told if line.startswith(("model name", "flags", "Features"))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _is_ours_alone(folder: Path) -> bool:
    about = folder.stat()
    others_write = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return about.st_uid == os.getuid() and not others_write and os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _tidy(folder: Path) -> None:
    """Remove what is not whole, and what was used the longest ago where all is more than `MOST_BYTES`."""
    marker = folder / _LOOKED_AT
    looked_at = marker.stat().st_mtime if marker.exists() else 0.0
    now = time.time()
    found = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process may tidy, too
            about = path.stat()
            if not stat.S_ISREG(about.st_mode) or path == marker or about.st_mtime > now - _WRITING_SECONDS:
                continue
            if about.st_mtime > looked_at - _WRITING_SECONDS and not _is_whole(path):
                path.unlink()
                continue
            found.append((max(about.st_atime, about.st_mtime), about.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MOST_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
    marker.touch()


def _is_whole(path: Path) -> bool:
    """JAX writes in place: a process that is killed, or a full disk, leaves a part, which JAX never replaces."""
    content = path.read_bytes()
    if not path.name.endswith("-cache") or content[:1] not in (b"", b"x"):  # not JAX's, or not compressed by zlib
        return True
    try:
        zlib.decompress(content)
    except zlib.error:
        return False
    return True
