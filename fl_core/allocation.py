"""How the GNU C library allocates memory for this process, by mallopt(3)."""

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def set_allocation(trim: int, mapped: int, arenas: int) -> None:
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
