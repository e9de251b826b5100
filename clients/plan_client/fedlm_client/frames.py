"""Messages between a client and the process that runs plans: a few numbers as JSON, then bytes. Neither is a pickle."""

import json
import socket
import struct
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


def receive_frame(connection: socket.socket, longest: int) -> tuple[dict[str, Any], bytearray]:
    """Receive a message with no more bytes than the longest.

    Raises:
      FrameError: it is none.
      EOFError: the other side is gone.
    """
    words, size = _SIZES.unpack(_receive(connection, _SIZES.size))
    if words > _LONGEST_HEAD or size > longest:
        raise FrameError(f"a message of {words} and {size} bytes")
    try:
        head = json.loads(bytes(_receive(connection, words)))
    except ValueError as error:
        raise FrameError(str(error)) from error
    if not isinstance(head, dict):
        raise FrameError("a message is no object")
    return head, _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = connection.recv_into(view, min(len(view), _AT_ONCE))
        if not count:
            raise EOFError
        view = view[count:]
    return found
