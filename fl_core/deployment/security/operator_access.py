"""Who may look at a server, and submit and stop its runs: whoever holds the token in a file.

The token is 256 random bits, kept in a file that only its owner can read. HTTP clients send it as `Authorization:
Bearer TOKEN` (RFC 6750), or, as browsers can, as the password of `Authorization: Basic` (RFC 7617), under any user.
"""

import base64
import binascii
import hmac
import secrets
from pathlib import Path

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import ConfigurationError

OPERATOR_TOKEN_FILE = "operator.token"
CHALLENGE = 'Basic realm="fedlm operators", charset="UTF-8"'
"""What `WWW-Authenticate` says beside status 401; browsers then ask for a password, which is the token."""

_SHORTEST, _LONGEST = 32, 256


class OperatorAccess:
    """The token of a file. The file is read again at each check, so that a new token counts at once."""

    def __init__(self, path: Path):
        """Name the file of a token; see `write_operator_token`.

        Raises:
          ConfigurationError: it cannot be read, others may read it, or it holds no token.
        """
        self._path = path
        if path.exists() and path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path}: others than its owner can read it; chmod 600 it, or make a new token")
        self.token()

    def token(self) -> str:
        """Read the token; raises `ConfigurationError` where it cannot be read, or the file holds no token."""
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{self._path}: the operator's token cannot be read ({error}); `fedlm keys operator` makes one"
            ) from error
        if not _SHORTEST <= len(token) <= _LONGEST:
            raise ConfigurationError(
                f"{self._path}: holds {len(token)} characters, expected a token of {_SHORTEST} to {_LONGEST}; "
                "`fedlm keys operator` makes one"
            )
        return token

    def allows(self, authorization: str | None) -> bool:
        """Check the value of a request's `Authorization` header; None where it has none.

        The token is compared in constant time. Where the file is gone nobody is let in.
        """
        try:
            expected = self.token()
        except ConfigurationError:
            return False
        return hmac.compare_digest(_presented(authorization or "").encode(errors="replace"), expected.encode())


def write_operator_token(path: Path) -> str:
    """Make a new token, in a file for its owner alone; one that was there before counts no more."""
    token = secrets.token_hex(32)
    write_atomically(path, token + "\n", private=True)
    return token


def _presented(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return ""
    return ""
