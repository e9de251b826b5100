"""The beginning of the process that runs plans: first its limits, then what is limited.

`python -m` this module, FILE MEMORY, serves the connection that is the open file of that number.
"""

import contextlib
import ctypes
import os
import resource
import socket
import sys

_LARGEST_FILE = 1 << 28
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


def main() -> None:
    """Confine this process, then serve its connection."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    confine(int(sys.argv[2]))
    # What starts threads, as NumPy does, is imported only now: a process that has any cannot give up its network.
    from .worker import serve

    serve(connection)


def confine(memory: int) -> None:
    """Bound what this process may use, so many bytes of memory among it.

    Where the system lets it (Linux with user namespaces), it has no network from now on.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    os.nice(5)


if __name__ == "__main__":
    main()
