"""People, and programs of theirs, who call a server as operators, and what they may do there."""

import base64
import binascii
import enum
import re
from typing import NamedTuple, Protocol

from fedlm.fl_core.errors import ConfigurationError

_NAME = re.compile(r"\w[\w.@+-]{0,99}", re.ASCII)


class Role(enum.StrEnum):
    """What somebody is to a server. Whoever has any role may look at runs."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    PRIVACY_APPROVER = "privacy_approver"
    AUDITOR = "auditor"
    KEY_ADMINISTRATOR = "key_administrator"


class Person(NamedTuple):
    """Who calls."""

    name: str  # the same in every call, and nobody else's
    roles: frozenset[Role]


LOCAL = Person("whoever can log in to this machine", frozenset(Role))
"""Who calls where nobody needs a token: a server in plain text, on loopback."""


def check_person_name(name: str) -> None:
    """Refuse what is no name of a person with a token. Raises ConfigurationError."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name[:100]!r} is no name of a person: 1 to 100 letters, digits, and . _ @ + -")


class Access(Protocol):
    """Knows people by what they present. Any thread may ask."""

    def who(self, authorization: str | None) -> Person:
        """Find who calls, by the value of a request's `Authorization` header; None where it has none.

        Raises:
          RefusedError: nobody who is known.
        """
        ...


def presented_token(authorization: str | None) -> str:
    """Read the token in an `Authorization` header; empty where there is none.

    HTTP clients send `Bearer TOKEN` (RFC 6750). Browsers can send it as the password of `Basic` (RFC 7617), under any
    user.
    """
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return ""
    return ""
