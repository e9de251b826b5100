"""Bytes for all that is hashed, signed or bound to a key: two different values never have the same bytes."""

import hashlib
import struct
from collections.abc import Sequence

Value = bytes | str | int | float | Sequence["Value"]
_PREFIX, _DEPTH = "fedlm-secagg-", 4


def encoded(value: Value) -> bytes:
    """Write a value as a letter for its type, the number of bytes or of items that follow (u32), and these.

    Integers are signed, of 8 bytes, floats are of IEEE 754 in 8 bytes, text is UTF-8; all numbers are big-endian.
    """
    if isinstance(value, bytes):
        return b"b" + struct.pack(">I", len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return b"s" + struct.pack(">I", len(text)) + text
    if isinstance(value, int):
        return b"i" + struct.pack(">Iq", 8, value)
    if isinstance(value, float):
        return b"f" + struct.pack(">Id", 8, value)
    return b"l" + struct.pack(">I", len(value)) + b"".join(map(encoded, value))


def decoded(content: bytes) -> Value:
    """Read what `encoded` wrote; raises `ValueError` for all other bytes."""
    value, end = _read(content, 0, _DEPTH)
    if end != len(content):
        raise ValueError(f"{len(content) - end} bytes behind the end")
    return value


def _read(content: bytes, start: int, depth: int) -> tuple[Value, int]:
    letter, begin = content[start : start + 1], start + 5
    if begin > len(content):
        raise ValueError("the bytes end too early")
    (count,) = struct.unpack_from(">I", content, start + 1)
    if letter == b"l" and depth:
        items = []
        for _ in range(count):
            item, begin = _read(content, begin, depth - 1)
            items.append(item)
        return tuple(items), begin
    value, end = content[begin : begin + count], begin + count
    if len(value) < count or (letter in b"if" and count != 8) or letter not in (b"b", b"s", b"i", b"f"):
        raise ValueError("the bytes are no value")
    if letter == b"i":
        return struct.unpack(">q", value)[0], end
    if letter == b"f":
        return struct.unpack(">d", value)[0], end
    return value if letter == b"b" else value.decode(), end


def labelled(label: str, *values: Value) -> bytes:
    """Encode values for one use of the protocol, which no other use can be taken for."""
    return encoded((_PREFIX + label, *values))


def digest(label: str, *values: Value) -> bytes:
    """Hash values for one use, by SHA-256."""
    return hashlib.sha256(labelled(label, *values)).digest()
