"""Memory that a step frees is there for the next one, in place of going back to the operating system in between.

The GNU C library gives every allocation of 32 MiB or more back as soon as it is freed, and what a compiled program
needs beside its arguments is one allocation. So each step that needs so much would have the system map all its pages
again, which takes longer than much of what it computes: `docs/speed.md` has the numbers.
"""

import os
import platform

from fedlm.fl_core.allocation import set_allocation

_MOST = 2**31 - 1
_OF_NEW_PROCESSES = {"MALLOC_TRIM_THRESHOLD_": 2**62, "MALLOC_MMAP_THRESHOLD_": _MOST, "MALLOC_ARENA_MAX": 1}


def keep_freed_memory() -> None:
    """Let this process, and those that it starts, keep what they free up to 2 GiB at once.

    Call it before threads start. Nothing is done where another C library is used, or where the environment says how
    the GNU C library is to allocate.
    """
    if platform.libc_ver()[0] != "glibc" or any(_says_how(name) for name in os.environ):
        return
    # Beside the first arena none holds an allocation of 64 MiB.
    set_allocation(trim=-1, mapped=_MOST, arenas=1)
    os.environ.update({name: str(value) for name, value in _OF_NEW_PROCESSES.items()})


def _says_how(name: str) -> bool:
    return name == "GLIBC_TUNABLES" or name.startswith("MALLOC_")
