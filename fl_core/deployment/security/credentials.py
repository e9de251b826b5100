"""Mutual TLS: who each side is, from files, and whom it believes."""

import datetime
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from fedlm.fedlm_client.errors import KeysError, RefusedError
from fedlm.fedlm_client.link.credentials import AUTHORITY_FILE, CLIENT, SERVER, read_credentials, said_time
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.security.certificates import check_name
from fedlm.fl_core.deployment.security.revocations import Revocations, serial_entry

_Made = TypeVar("_Made")
_SECONDS_BETWEEN_LOOKS = 1.0


def write_credentials(folder: Path, authority: bytes, certificate: bytes, key: bytes) -> None:
    """Write what a client needs, in PEM: the authority it believes, its certificate, its key for its owner alone."""
    write_atomically(folder / AUTHORITY_FILE, authority)
    write_pair(folder, CLIENT, certificate, key)


def write_pair(folder: Path, side: str, certificate: bytes, key: bytes) -> None:
    """Write a side's certificate and its key, in PEM; only the owner of the file can read the key."""
    # A crash in between leaves a pair that does not match, which `read_credentials` says.
    write_atomically(folder / f"{side}.key", key, private=True)
    write_atomically(folder / f"{side}.pem", certificate)


def server_tls(folder: Path, certified: bool = False) -> ssl.SSLContext:
    """Make the TLS of a server.

    Clients need a certificate of the authority where they are to be `certified`. See `read_credentials` for errors.
    """
    read_credentials(folder, SERVER)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{SERVER}.pem", folder / f"{SERVER}.key")
    if certified:
        context.load_verify_locations(folder / AUTHORITY_FILE)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Reloading(Generic[_Made]):
    """What is made of the files of a server's credentials, and made anew once these have changed."""

    def __init__(self, folder: Path, make: Callable[[Path], _Made]):
        """Make it of a folder; raises what `make` does."""
        self._folder, self._make, self._looked = folder, make, time.monotonic()
        self._versions, self._made = self._found(), make(folder)

    def __call__(self) -> _Made:
        """Give what was made last; where new files do not belong together, of those before them."""
        if time.monotonic() - self._looked >= _SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            if (versions := self._found()) != self._versions:
                try:
                    self._made, self._versions = self._make(self._folder), versions
                    event("keys_reloaded", folder=self._folder)
                except (KeysError, ssl.SSLError, OSError) as error:
                    # One file may be there before the other: it is looked again.
                    warn("keys_not_reloaded", why=str(error))
        return self._made

    def _found(self) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        for name in (AUTHORITY_FILE, f"{SERVER}.pem", f"{SERVER}.key"):
            try:
                status = (self._folder / name).stat()
                found.append((status.st_mtime_ns, status.st_ino))
            except OSError:
                found.append(None)
        return found


def reloading_tls(folder: Path, certified: bool = False) -> Reloading[ssl.SSLContext]:
    """Make the TLS of a server that follows its files; see `server_tls`."""
    return Reloading(folder, partial(server_tls, certified=certified))


class ClientCertificate(NamedTuple):
    """What counts of a certificate that TLS has verified. Its connection may have begun long ago."""

    names: tuple[str, ...]  # common names of its subject
    ends: float  # when it is valid no more, in seconds since 1970
    serial: int


def read_verified(found: dict[str, Any]) -> ClientCertificate | None:
    """Give what counts of a certificate, as `ssl.SSLSocket.getpeercert` gives it; None where there is none."""
    if not found:
        return None
    pairs = [pair for group in found["subject"] for pair in group]
    names = tuple(value for kind, value in pairs if kind == "commonName")
    return ClientCertificate(names, ssl.cert_time_to_seconds(found["notAfter"]), int(found["serialNumber"], 16))


class CertifiedNames:
    """Finds out who calls: the name in the certificate that TLS has verified, unless it was revoked."""

    def __init__(self, folder: Path):
        """Name the folder of keys, whose list of the revoked is looked at in each call; `KeysError`: there is none."""
        self._revocations = Revocations(folder)

    def check(self, certificate: ClientCertificate | None) -> str:
        """Find a client's name.

        Raises:
          RefusedError: there is no certificate, it has no client's name, is valid no more, or was revoked.
        """
        if certificate is None:
            raise RefusedError("there is no certificate")
        try:
            (name,) = certificate.names
            identity = check_name(name)
        except (ValueError, KeysError) as error:
            raise RefusedError("the certificate names no client") from error
        if (now := time.time()) > certificate.ends:
            ended, today = (
                said_time(datetime.datetime.fromtimestamp(at, datetime.UTC)) for at in (certificate.ends, now)
            )
            raise RefusedError(
                f"the certificate of {identity} is no longer valid: it ended at {ended}, and the server's clock says "
                f"{today}; enrol again"
            )
        try:
            revoked = self._revocations.entries()
        except KeysError as error:
            warn("revocations_not_read", why=str(error))
            raise RefusedError("the list of revoked clients cannot be read, so nobody is let in") from error
        if identity in revoked:
            raise RefusedError(f"the certificate of {identity} was revoked")
        if serial_entry(certificate.serial) in revoked:
            raise RefusedError(f"the certificate of {identity} no longer counts, because there is a newer one")
        return identity
