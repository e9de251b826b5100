"""Who may do what at a server, in one file of TOML: people with tokens.

The file holds hashes of tokens, SHA-256 in hex. Tokens are 256 random bits, so that a plain hash tells nothing of them,
and how long it takes to find one tells nothing either.
"""

import re
import threading
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.security.operator_access import UNKNOWN_TOKEN, token_hash
from fedlm.fl_core.deployment.security.people import Person, Role, check_person_name, presented_token
from fedlm.fl_core.errors import ConfigurationError

_HASH = re.compile(r"[0-9a-f]{64}")


class AccessRules(NamedTuple):
    """What an access file says."""

    people: dict[str, Person]  # by the hash of a token


class AccessFile:
    """An `Access` by an access file. What changes in the file counts from the next call on; while it cannot be read,
    or is wrong, nobody is let in."""

    def __init__(self, path: Path):
        """Read the file; raises what `read_access_file` does."""
        self._path, self._lock = path, threading.Lock()
        self._version, self._rules = _version(path), read_access_file(path)

    def who(self, authorization: str | None) -> Person:
        token = presented_token(authorization)
        person = self._now().people.get(token_hash(token))
        if person is None:
            raise RefusedError(UNKNOWN_TOKEN)
        return person

    def _now(self) -> AccessRules:
        with self._lock:
            if (version := _version(self._path)) != self._version:
                try:
                    self._rules = read_access_file(self._path)
                except ConfigurationError as error:
                    warn("access_file_refused", why=str(error))
                    self._rules = AccessRules({})
                self._version = version
            return self._rules


def read_access_file(path: Path) -> AccessRules:
    """Read an access file.

    Raises:
      ConfigurationError: it cannot be read, or does not say clearly who may do what.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read as an access file ({error}); write TOML there") from error
    _check_names(path, "the file", found, {"tokens"})
    people: dict[str, Person] = {}
    for name, table in _table(path, "tokens", found.get("tokens", {})).items():
        where = f"tokens.{name}"
        try:
            check_person_name(name)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {where}: {error}") from error
        _check_names(path, where, _table(path, where, table), {"roles", "sha256"})
        person = Person(name, _roles(path, where, table.get("roles")))
        for one in _texts(path, f"{where}.sha256", table.get("sha256")):
            if not _HASH.fullmatch(one):
                raise ConfigurationError(
                    f"{path}: {where}.sha256 has {one[:80]!r}, but must be 64 hex digits in lower case; "
                    "`fedlm keys operator NAME` prints them"
                )
            if one in people:
                raise ConfigurationError(f"{path}: {where}.sha256: {people[one].name} has this token too; make another")
            people[one] = person
    if not people:
        raise ConfigurationError(f"{path}: lets nobody in; add the lines that `fedlm keys operator NAME` prints")
    return AccessRules(people)


def _roles(path: Path, where: str, value: Any) -> frozenset[Role]:
    named = _texts(path, f"{where}.roles", value)
    known = [role.value for role in Role]
    for one in named:
        if one not in known:
            raise ConfigurationError(f"{path}: {where}.roles has {one!r}, but roles are {', '.join(known)}")
    return frozenset(map(Role, named))


def _texts(path: Path, where: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        found = "not given" if value is None else repr(value)
        raise ConfigurationError(f"{path}: {where} is {found}, but must be a list of texts, with one at least")
    return value


def _table(path: Path, where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: {where} is {value!r}, but must be a table")
    return value


def _check_names(path: Path, where: str, found: dict[str, Any], known: set[str]) -> None:
    for name in sorted(found.keys() - known):
        raise ConfigurationError(f"{path}: {where} has {name!r}, but may have only {', '.join(sorted(known))}")


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size
    except OSError:
        return None
