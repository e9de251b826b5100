"""Who may do what at a server, in one file of TOML: people with tokens, and those of an issuer.

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
from fedlm.fl_core.deployment.security.openid import ALGORITHMS, Issuer, OpenId, check_url
from fedlm.fl_core.deployment.security.operator_access import UNKNOWN_TOKEN, token_hash
from fedlm.fl_core.deployment.security.people import Person, Role, check_person_name, presented_token
from fedlm.fl_core.errors import ConfigurationError

_HASH = re.compile(r"[0-9a-f]{64}")
_DOTS_OF_A_JWT = 2


class AccessRules(NamedTuple):
    """What an access file says."""

    people: dict[str, Person]  # by the hash of a token
    openid: OpenId | None = None  # knows people by tokens of an issuer


class AccessFile:
    """An `Access` by an access file. What changes in the file counts from the next call on; while it cannot be read,
    or is wrong, nobody is let in."""

    def __init__(self, path: Path):
        """Read the file; raises what `read_access_file` does."""
        self._path, self._lock = path, threading.Lock()
        self._version, self._rules = _version(path), read_access_file(path)

    def who(self, authorization: str | None) -> Person:
        token = presented_token(authorization)
        rules = self._now()
        if (person := rules.people.get(token_hash(token))) is not None:
            return person
        if rules.openid is None or token.count(".") != _DOTS_OF_A_JWT:
            raise RefusedError(UNKNOWN_TOKEN)
        return rules.openid.who(token)

    def _now(self) -> AccessRules:
        with self._lock:
            if (version := _version(self._path)) != self._version:
                try:
                    rules = read_access_file(self._path)
                    # One that knows the issuer's keys already lets people in while the issuer does not answer.
                    known = self._rules.openid
                    same = known is not None and rules.openid is not None and known.issuer == rules.openid.issuer
                    self._rules = rules._replace(openid=known) if same else rules
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
        writable = path.stat().st_mode & 0o022
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read as an access file ({error}); write TOML there") from error
    if writable:
        raise ConfigurationError(f"{path}: others can write it, and so let anybody in; run `chmod go-w {path}`")
    _check_names(path, "the file", found, {"tokens", "openid"})
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
    openid = None if "openid" not in found else OpenId(_issuer(path, _table(path, "openid", found["openid"])))
    if not people and openid is None:
        raise ConfigurationError(f"{path}: lets nobody in; add the lines that `fedlm keys operator NAME` prints")
    return AccessRules(people, openid)


def _issuer(path: Path, table: dict[str, Any]) -> Issuer:
    _check_names(path, "openid", table, {"issuer", "audience", "claim", "roles", "algorithms"})
    url, audience, claim = (_text(path, f"openid.{name}", table.get(name)) for name in ("issuer", "audience", "claim"))
    if (why := check_url(url)) is not None:
        raise ConfigurationError(f"{path}: openid.issuer is {url!r}, but {why}")
    named = _table(path, "openid.roles", table.get("roles"))
    roles = {text: _roles(path, "openid.roles", value, text) for text, value in named.items()}
    algorithms = _texts(path, "openid.algorithms", table.get("algorithms", ["RS256", "ES256"]))
    for one in algorithms:
        if one not in ALGORITHMS:
            raise ConfigurationError(
                f"{path}: openid.algorithms has {one!r}, but may have only {', '.join(ALGORITHMS)}, which need the "
                "issuer's private key"
            )
    return Issuer(url, audience, claim, roles, tuple(algorithms))


def _roles(path: Path, where: str, value: Any, name: str = "roles") -> frozenset[Role]:
    named = _texts(path, f"{where}.{name}", value)
    known = [role.value for role in Role]
    for one in named:
        if one not in known:
            raise ConfigurationError(f"{path}: {where}.{name} has {one!r}, but roles are {', '.join(known)}")
    return frozenset(map(Role, named))


def _text(path: Path, where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{path}: {where} is {'not given' if value is None else repr(value)}; give a text")
    return value


def _texts(path: Path, where: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        found = "not given" if value is None else repr(value)
        raise ConfigurationError(f"{path}: {where} is {found}, but must be a list of texts, with one at least")
    return value


def _table(path: Path, where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: {where} is {'not given' if value is None else repr(value)}; write a table")
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
