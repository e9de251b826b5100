"""How a server frees memory: what is freed goes back to the operating system, and no search for garbage takes long."""

import contextlib
import ctypes
import gc
from collections.abc import Iterator

from fedlm.fl_core.allocation import set_allocation

_LARGE, _HELD = 1 << 20, 32 << 20


def return_freed_memory() -> None:
    """Keep the C library from hoarding what large arrays leave behind; only glibc needs it, others stay as they are.

    By default glibc learns from the sizes that are freed and keeps arrays of that size in its heap, whose holes then
    add up to several models. With fixed limits every large array is a mapping of its own, and smaller ones, such as
    chunks, stay for the next until `trim_heap`.
    """
    set_allocation(trim=_HELD, mapped=_LARGE, arenas=2)


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
