"""People whom an issuer of OpenID Connect knows: by its signed tokens (RFC 7519), with keys that it changes.

The issuer's address leads to its keys (OpenID Connect Discovery 1.0). A signature counts by one of these alone, and by
algorithms with a private key alone, so neither "none" nor a public key taken for a shared one is believed.
"""

import functools
import json
import math
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fedlm_client.link.host_and_port import is_loopback
from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.security.people import Person, Role
from fedlm.fl_core.extras import extra

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_SKEW_SECONDS = 60.0
_FRESH_SECONDS, _BETWEEN_SECONDS, _OLDEST_SECONDS = 300.0, 10.0, 3600.0
_WAIT_SECONDS, _ANSWER_SECONDS, _ANSWER_BYTES, _LONGEST_SUBJECT = 1.0, 5.0, 1 << 20, 255
_NEEDED = ["exp", "iat", "iss", "aud", "sub"]


class Issuer(NamedTuple):
    """Whose tokens are believed, and what they say of people."""

    url: str
    audience: str  # for whom a token must be
    claim: str  # which claim of a token says what somebody is: a text, or a list of texts
    roles: dict[str, frozenset[Role]]  # the roles of each such text
    algorithms: tuple[str, ...]  # by which a token may be signed


def check_url(url: str) -> str | None:
    """Say what is wrong with the address of an issuer or of its keys; None where nothing is."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "is no URL"
    if parts.scheme == "https" and host and not (parts.query or parts.fragment):
        return None
    if parts.scheme == "http" and is_loopback(host):
        return None
    return "must be an address of https, such as https://login.example.org, without ? and #"


class OpenId:
    """Knows people by tokens of one issuer, whose keys it remembers. Any thread may ask."""

    def __init__(self, issuer: Issuer, clock: Callable[[], float] = time.monotonic):
        """Name the issuer, who is first asked for keys when somebody shows a token.

        Args:
          clock: seconds, for the age of keys.
        """
        self.issuer, self._keys = issuer, _Keys(issuer.url, clock)

    def who(self, token: str) -> Person:
        """Find who presents a token. Raises RefusedError where it is not a valid one."""
        with extra("deploy"):
            import jwt
        try:
            key = self._keys.find(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(self.issuer.algorithms),
                audience=self.issuer.audience,
                issuer=self.issuer.url,
                leeway=_SKEW_SECONDS,
                options={"require": _NEEDED, "enforce_minimum_key_length": True},
            )
        except jwt.PyJWTError as error:
            raise RefusedError(f"the token is refused: {error}") from error
        subject, found = claims["sub"], claims.get(self.issuer.claim, [])
        if not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise RefusedError("the token is refused: its subject has no length that a subject may have")
        texts = [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, str)]
        roles = (self.issuer.roles.get(one, frozenset()) for one in texts)
        # No person with a token of the file has a colon in the name.
        return Person(f"openid:{subject}", frozenset().union(*roles))


class _Keys:
    """The keys of an issuer. They are asked for anew after a while, and where one is not known, though not too often;
    while the issuer does not answer, the latest count for an hour."""

    def __init__(self, url: str, clock: Callable[[], float]):
        self._url, self._clock, self._lock = url, clock, threading.Lock()
        self._found: dict[str | None, PyJWK] = {}
        self._got = self._asked = -math.inf
        self._asking: threading.Thread | None = None

    def find(self, name: str | None) -> "PyJWK":
        """Find a key by its name; raises RefusedError where there is none."""
        wanting = name not in self._found or self._clock() - self._got > _FRESH_SECONDS
        # Whoever shows tokens with made-up names of keys keeps nobody waiting for long, nor the issuer busy.
        if wanting and self._lock.acquire(timeout=_WAIT_SECONDS):
            try:
                self._refresh()
            finally:
                self._lock.release()
        if self._clock() - self._got > _OLDEST_SECONDS:
            raise RefusedError("the issuer of tokens does not answer; try again later")
        if name not in self._found:
            raise RefusedError("the token is refused: its issuer has no such key")
        return self._found[name]

    def _refresh(self) -> None:
        if self._clock() - self._asked < _BETWEEN_SECONDS:
            return
        self._asked = self._clock()
        # An issuer that answers byte by byte takes one thread, and nobody waits for it.
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
        self._asking.join(_ANSWER_SECONDS)

    def _ask(self) -> None:
        try:
            self._found, self._got = _fetched_keys(self._url), self._clock()
            event("issuer_keys_read", issuer=self._url, keys=len(self._found))
        # What is no answer of HTTP, or no key, is so too: the issuer may send anything.
        except (OSError, ValueError, HTTPException, LookupError, TypeError, AttributeError) as error:
            warn("issuer_keys_not_read", issuer=self._url, why=str(error))


def _fetched_keys(url: str) -> "dict[str | None, PyJWK]":
    """Ask an issuer for its keys, by their names; raises OSError or ValueError where it gives none."""
    import jwt

    told = _fetched(url.rstrip("/") + "/.well-known/openid-configuration")
    if told.get("issuer") != url:
        raise ValueError(f"the issuer at {url} says that it is {told.get('issuer')!r}")
    where = str(told.get("jwks_uri"))
    if (why := check_url(where)) is not None:
        raise ValueError(f"its jwks_uri {where} {why}")
    listed = _fetched(where).get("keys")
    if not isinstance(listed, list):
        raise ValueError(f"{where} has no list of keys")
    signing = [one for one in listed if isinstance(one, dict) and one.get("use", "sig") == "sig"]
    try:
        return {key.key_id: key for key in jwt.PyJWKSet.from_dict({"keys": signing}).keys}
    except jwt.PyJWTError as error:
        raise ValueError(f"{where} has no key that can be used: {error}") from error


def _fetched(url: str) -> dict[str, Any]:
    with _opener().open(url, None, _ANSWER_SECONDS) as answer:
        found = json.loads(answer.read(_ANSWER_BYTES))
    if not isinstance(found, dict):
        raise ValueError(f"{url} has no object of JSON")
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: a plain address could follow."""

    def redirect_request(self, *args: Any, **words: Any) -> None:
        return None


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
