"""The head of the PROXY protocol, with which a balancer says before all else whom it passes on, in either version.

See https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt.
"""

import ipaddress
import struct
from collections.abc import Awaitable, Callable

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_LONGEST_LINE, _LONGEST_REST = 107, 4096
_OF_WORDS = {"TCP4": 4, "TCP6": 6}
_OF_BYTES = {0x11: "!4s4sHH", 0x21: "!16s16sHH"}
_LOCAL, _PROXIED, _UNKNOWN = 0x20, 0x21, 0x00

Receive = Callable[[int], Awaitable[bytes]]
"""Waits for so many bytes; gives fewer where no others come."""


class ProxyHeadError(Exception):
    """What a balancer sends begins with no head of the PROXY protocol."""


async def read_proxy_head(receive: Receive) -> tuple[str, int] | None:
    """Read a head, and no byte of what follows it.

    Returns:
      The address and port of who has dialled; None where the balancer speaks for itself, or does not know.

    Raises:
      ProxyHeadError: it is none.
    """
    first = await receive(len(_SIGNATURE))
    if first == _SIGNATURE:
        return await _read_bytes(receive)
    if not first.startswith(b"PROXY "):
        raise ProxyHeadError(f"it begins with {first!r}, expected a head of the PROXY protocol, version 1 or 2")
    return await _read_line(first, receive)


async def _read_line(first: bytes, receive: Receive) -> tuple[str, int] | None:
    line = first
    while not line.endswith(b"\r\n"):
        byte = await receive(1)
        if not byte or len(line) == _LONGEST_LINE:
            raise ProxyHeadError(f"the line {line!r} does not end within {_LONGEST_LINE} bytes")
        line += byte
    words = line[:-2].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return None
    if len(words) != 6 or words[1] not in _OF_WORDS:
        raise ProxyHeadError(f"the line {line!r} is not PROXY, TCP4 or TCP6, two addresses and two ports")
    try:
        found = [ipaddress.ip_address(word) for word in words[2:4]]
    except ValueError as error:
        raise ProxyHeadError(f"the line {line!r} names no addresses: {error}") from error
    ports = [int(word) if word.isdecimal() and len(word) <= 5 else 1 << 16 for word in words[4:]]
    if any(one.version != _OF_WORDS[words[1]] for one in found) or any(port >= 1 << 16 for port in ports):
        raise ProxyHeadError(f"the line {line!r} has an address of another family, or a port that there is not")
    return str(found[0]), ports[0]


async def _read_bytes(receive: Receive) -> tuple[str, int] | None:
    rest = await receive(4)
    if len(rest) < 4:
        raise ProxyHeadError("the head breaks off")
    command, family, size = struct.unpack("!BBH", rest)
    if command not in (_LOCAL, _PROXIED) or size > _LONGEST_REST:
        raise ProxyHeadError(f"the head has command {command:#x} and {size} bytes, which do not exist")
    content = await receive(size) if size else b""
    if len(content) < size:
        raise ProxyHeadError("the head breaks off")
    if command == _LOCAL or family == _UNKNOWN:
        return None
    if family not in _OF_BYTES or size < struct.calcsize(_OF_BYTES[family]):
        raise ProxyHeadError(f"the head has family {family:#x} and {size} bytes, expected TCP over IPv4 or IPv6")
    source, _, port, _ = struct.unpack_from(_OF_BYTES[family], content)
    return str(ipaddress.ip_address(source)), int(port)
