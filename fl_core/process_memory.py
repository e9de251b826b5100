"""When memory that this process frees goes back to the operating system, and when garbage is looked for.

The GNU C library gives every allocation of 32 MiB or more back as soon as it is freed. A compiled program needs one
such allocation beside its arguments. The system would map all its pages again in each step, which takes longer than
much of what the step computes: `docs/speed.md` has the numbers. Training keeps what it frees. A server gives it back.
"""

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST = 2**31 - 1
_OF_NEW_PROCESSES = {"MALLOC_TRIM_THRESHOLD_": 2**62, "MALLOC_MMAP_THRESHOLD_": _MOST, "MALLOC_ARENA_MAX": 1}
_LARGE, _HELD = 1 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Let this process, and those that it starts, keep what they free up to 2 GiB at once.

    Call it before threads start. Nothing is done where another C library is used, or where the environment says how
    the GNU C library is to allocate.
    """
    if platform.libc_ver()[0] != "glibc" or any(_says_how(name) for name in os.environ):
        return
    # Beside the first arena none holds an allocation of 64 MiB.
    _set_allocation(trim=-1, mapped=_MOST, arenas=1)
    os.environ.update({name: str(value) for name, value in _OF_NEW_PROCESSES.items()})


def return_freed_memory() -> None:
    """Keep the C library from hoarding what large arrays leave behind; only glibc needs it, others stay as they are.

    By default glibc learns from the sizes that are freed and keeps arrays of that size in its heap, whose holes then
    add up to several models. With fixed limits every large array is a mapping of its own, and smaller ones, such as
    chunks, stay for the next until `trim_heap`.
    """
    _set_allocation(trim=_HELD, mapped=_LARGE, arenas=2)


def trim_heap() -> None:
    """Give the C library's free memory back, holes in its heap too; it takes milliseconds."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def frozen_start() -> Iterator[None]:
    """Keep Python's garbage collector from going over what there is now, for as long as the context lasts.

    JAX and its libraries have so many objects that a whole collection would stop the event loop for tenths of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _set_allocation(trim: int, mapped: int, arenas: int) -> None:
    """Set from when on memory goes back to the operating system; other C libraries stay as they are.

    Args:
      trim: free bytes at the end of the heap from which on they go back; -1 for never.
      mapped: bytes from which on an allocation is a mapping of its own, which goes back when it is freed.
      arenas: heaps at most, which threads share.
    """
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        for what, value in ((_MMAP_THRESHOLD, mapped), (_TRIM_THRESHOLD, trim), (_ARENA_MAX, arenas)):
            tune(what, value)


def _says_how(name: str) -> bool:
    return name == "GLIBC_TUNABLES" or name.startswith("MALLOC_")
