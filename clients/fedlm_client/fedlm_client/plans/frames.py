"""Messages between a client and the process that runs plans: a few numbers as JSON, then bytes. Neither is a pickle."""

import json
import math
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

_SIZES = struct.Struct("<QQ")
_LONGEST_HEAD = 1 << 16
_AT_ONCE = 1 << 20


class FrameError(Exception):
    """What came is no message, or a longer one than was expected."""


def send_frame(connection: socket.socket, head: dict[str, Any], parts: Sequence[bytes | memoryview] = ()) -> None:
    """Send a message whose bytes are some parts, laid end to end."""
    words = json.dumps(head).encode()
    connection.sendall(_SIZES.pack(len(words), sum(len(part) for part in parts)) + words)
    for part in parts:
        connection.sendall(part)


def receive_frame(
    connection: socket.socket, longest: int, deadline: float = math.inf
) -> tuple[dict[str, Any], bytearray]:
    """Receive a message with no more bytes than the longest.

    Args:
      connection: from the other side.
      longest: bytes, beside the head.
      deadline: when all of it must be there, by `time.monotonic`.

    Raises:
      FrameError: it is none.
      EOFError: the other side is gone.
      TimeoutError: it is not there in time.
    """
    words, size = _SIZES.unpack(_receive(connection, _SIZES.size, deadline))
    if words > _LONGEST_HEAD or size > longest:
        raise FrameError(f"a message of {words} and {size} bytes")
    try:
        head = json.loads(bytes(_receive(connection, words, deadline)))
    except (ValueError, RecursionError) as error:
        raise FrameError(str(error)) from error
    if not isinstance(head, dict):
        raise FrameError("a message is no object")
    return head, _receive(connection, size, deadline)


def _receive(connection: socket.socket, size: int, deadline: float) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        # The other side may send byte by byte, so that each wait by itself is short.
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(None if math.isinf(left) else left)
        count = connection.recv_into(view, min(len(view), _AT_ONCE))
        if not count:
            raise EOFError
        view = view[count:]
    return found
