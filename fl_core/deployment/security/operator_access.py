"""Tokens of operators: 256 random bits, each in a file that only its owner can read."""

import hashlib
import hmac
import secrets
from pathlib import Path

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.security.people import Person, Role, presented_token
from fedlm.fl_core.errors import ConfigurationError

OPERATOR_TOKEN_FILE = "operator.token"
CHALLENGE = 'Basic realm="fedlm operators", charset="UTF-8"'
"""What `WWW-Authenticate` says beside status 401; browsers then ask for a password, which is the token."""

UNKNOWN_TOKEN = "the operators' token is needed"
_SHORTEST, _LONGEST = 32, 1 << 13


class OperatorAccess:
    """An `Access` by the token of a file, with which one may do everything. The file is read again at each check, so
    that a new token counts at once."""

    def __init__(self, path: Path):
        """Name the file of a token; raises what `read_token` does."""
        self._path = path
        self.token()

    def token(self) -> str:
        """Read the token; raises what `read_token` does."""
        return read_token(self._path)

    def who(self, authorization: str | None) -> Person:
        try:
            expected = self.token()
        except ConfigurationError as error:
            # Where the file is gone nobody is let in.
            raise RefusedError(UNKNOWN_TOKEN) from error
        if not hmac.compare_digest(presented_token(authorization).encode(errors="replace"), expected.encode()):
            raise RefusedError(UNKNOWN_TOKEN)
        return Person("operator", frozenset(Role))


def read_token(path: Path) -> str:
    """Read the token of a file.

    Raises:
      ConfigurationError: it cannot be read, others may read it, or it holds no token.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path}: others than its owner can read it; chmod 600 it, or make a new token")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: the operator's token cannot be read ({error}); `fedlm keys operator` makes one"
        ) from error
    if not _SHORTEST <= len(token) <= _LONGEST:
        raise ConfigurationError(
            f"{path}: holds {len(token)} characters, expected a token of {_SHORTEST} to {_LONGEST}; "
            "`fedlm keys operator` makes one"
        )
    return token


def write_operator_token(path: Path) -> str:
    """Make a new token, in a file for its owner alone; one that was there before counts no more."""
    token = secrets.token_hex(32)
    write_atomically(path, token + "\n", private=True)
    return token


def token_lines(name: str, token: str) -> str:
    """Write the lines of an access file that let somebody in with a token, as a viewer."""
    return f'[tokens."{name}"]\nroles = ["{Role.VIEWER}"]\nsha256 = ["{token_hash(token)}"]'


def token_hash(token: str) -> str:
    """Give the SHA-256 of a token, in hex, by which a server knows it."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
