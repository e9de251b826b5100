"""The bytes of what members and server say to each other: canonical encodings, checked for types and sizes.

Indices lie in ascending order. What is wrong raises `UnsafeSumError`.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..errors import UnsafeSumError
from . import shamir
from .canonical import decoded, encoded
from .keys import Advertisement, AttemptName
from .member import Dealing, Dealt, Revealed
from .roster import Parameters, Roster

_SEALED_BYTES = 2 * shamir.SHARE_BYTES + 16
_Read = TypeVar("_Read")


def write_advertisement(one: Advertisement) -> bytes:
    """Write a client's signed keys."""
    return encoded(one)


def read_advertisement(content: bytes) -> Advertisement:
    """Read a client's signed keys."""
    return _read(content, lambda value: _record(Advertisement, value))


def write_roster(roster: Roster) -> bytes:
    """Write a roster."""
    return encoded(roster)


@functools.lru_cache(1)
def read_roster(content: bytes) -> Roster:
    """Read a roster; members that share a process have one, with all that was computed from it."""

    def read(value: Any) -> Roster:
        name, rules, members = value
        ads = tuple(_record(Advertisement, one) for one in members)
        return Roster(_record(AttemptName, name), _record(Parameters, rules), ads)

    return _read(content, read)


def write_dealing(dealing: Dealing) -> bytes:
    """Write a member's shares for others."""
    return encoded((_pairs(dealing.sealed), dealing.commitment))


def read_dealing(content: bytes) -> Dealing:
    """Read a member's shares for others."""

    def read(value: Any) -> Dealing:
        sealed, hashed = value
        return Dealing(_by_index(sealed, _SEALED_BYTES), _of_size(hashed, 32))

    return _read(content, read)


def write_dealt(dealt: Dealt) -> bytes:
    """Write who has dealt, and the shares for one member."""
    return encoded((sorted(dealt.members), _pairs(dealt.sealed)))


def read_dealt(content: bytes) -> Dealt:
    """Read who has dealt, and the shares for one member."""

    def read(value: Any) -> Dealt:
        members, sealed = value
        return Dealt(_indices(members), _by_index(sealed, _SEALED_BYTES))

    return _read(content, read)


def write_members(members: Iterable[int]) -> bytes:
    """Write indices of members."""
    return encoded(sorted(members))


def read_members(content: bytes) -> frozenset[int]:
    """Read indices of members."""
    return _read(content, _indices)


def write_signatures(signatures: dict[int, bytes]) -> bytes:
    """Write members' signatures of who survives."""
    return encoded(_pairs(signatures))


def read_signatures(content: bytes) -> dict[int, bytes]:
    """Read members' signatures of who survives."""
    return _read(content, lambda value: _by_index(value, None))


def write_revealed(revealed: Revealed) -> bytes:
    """Write the shares that a member gives the server."""
    return encoded((_pairs(revealed.own_masks), _pairs(revealed.masking_keys)))


def read_revealed(content: bytes) -> Revealed:
    """Read the shares that a member gives the server; of no member are there both."""

    def read(value: Any) -> Revealed:
        own, keys = (_by_index(one, shamir.SHARE_BYTES) for one in value)
        if own.keys() & keys.keys():
            raise ValueError("shares of both secrets of one member")
        return Revealed(own, keys)

    return _read(content, read)


def _read(content: bytes, read: Callable[[Any], _Read]) -> _Read:
    try:
        return read(decoded(content))
    except (ValueError, TypeError) as error:
        raise UnsafeSumError(f"a message of a secure sum cannot be read ({error})") from error


def _record(kind: Any, value: Any) -> Any:
    fields = kind.__annotations__
    if len(value) != len(fields) or any(
        type(one) is not want for one, want in zip(value, fields.values(), strict=True)
    ):
        raise ValueError(f"no {kind.__name__}")
    return kind(*value)


def _pairs(content: dict[int, bytes]) -> list[tuple[int, bytes]]:
    return sorted(content.items())


def _by_index(value: Any, size: int | None) -> dict[int, bytes]:
    _indices([one for one, _ in value])
    return {one: _of_size(content, size) for one, content in value}


def _indices(value: Any) -> frozenset[int]:
    if any(type(one) is not int or one < 0 for one in value) or list(value) != sorted(set(value)):
        raise ValueError("no ascending indices")
    return frozenset(value)


def _of_size(value: Any, size: int | None) -> bytes:
    if type(value) is not bytes or len(value) != (len(value) if size is None else size):
        raise ValueError(f"expected {'' if size is None else size} bytes")
    return value
