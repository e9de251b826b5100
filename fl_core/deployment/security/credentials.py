"""Mutual TLS: who each side is, from files, and whom it believes."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.deployment.protocol.errors import RefusedError
from fedlm.fl_core.deployment.security.certificates import (
    AUTHORITY_FILE,
    KeysError,
    certificate_pem,
    check_certificate,
    check_name,
    common_name,
    key_pem,
    read_certificate,
    read_key,
)

SERVER, CLIENT = "server", "client"
REVOKED_FOLDER = "revoked"
"""In the folder of keys: an empty file for each client that was revoked."""


@dataclass(frozen=True)
class Credentials:
    """One side's own certificate and key, and the authority that it believes."""

    authority: bytes  # certificate, in PEM
    certificate: bytes  # its own, in PEM
    key: bytes  # its own, in PEM
    name: str

    def for_server(self) -> grpc.ServerCredentials:
        """Make what a server listens with: clients without a certificate of the authority do not get in."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.authority, require_client_auth=True)

    def for_enrolment(self) -> grpc.ServerCredentials:
        """Make what a server listens with for clients that have no certificate yet."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)])

    def for_client(self) -> grpc.ChannelCredentials:
        """Make what a client dials with."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


def read_credentials(folder: Path, side: str) -> Credentials:
    """Read the credentials of one side, and check that they belong together.

    Args:
      folder: with `ca.pem`, and the certificate and key of the side.

    Raises:
      KeysError: a file is missing, damaged, not valid now, readable by others, or does not belong to the others.
    """
    path = folder / f"{side}.pem"
    authority, certificate = read_certificate(folder / AUTHORITY_FILE), read_certificate(path)
    key = read_key(folder / f"{side}.key")
    check_certificate(path, certificate, key, authority)
    return Credentials(certificate_pem(authority), certificate_pem(certificate), key_pem(key), common_name(certificate))


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
    """Make the TLS of a server that speaks HTTP, with the same certificate as for gRPC.

    Clients need a certificate of the authority where they are to be `certified`. See `read_credentials` for errors.
    """
    read_credentials(folder, SERVER)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{SERVER}.pem", folder / f"{SERVER}.key")
    if certified:
        context.load_verify_locations(folder / AUTHORITY_FILE)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(folder: Path) -> ssl.SSLContext:
    """Make the TLS of a client that speaks HTTP; see `read_credentials` for its errors."""
    read_credentials(folder, CLIENT)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / AUTHORITY_FILE))
    context.load_cert_chain(folder / f"{CLIENT}.pem", folder / f"{CLIENT}.key")
    return context


class CertifiedNames:
    """Finds out who calls: the name in the certificate that TLS has verified, unless it was revoked."""

    def __init__(self, folder: Path):
        """Name the folder of keys, whose list of the revoked is read in each call; `KeysError`: there is none."""
        self._revoked = folder / REVOKED_FOLDER
        if not self._revoked.is_dir():
            raise KeysError(f"{self._revoked}: there is no list of revoked clients; `fedlm keys ca` makes one")

    def check(self, names: list[bytes]) -> str:
        """Find a client's name among those of a certificate's subject.

        Raises:
          RefusedError: it has no client's name, or was revoked.
        """
        try:
            (name,) = names
            identity = check_name(name.decode())
        except (ValueError, KeysError) as error:
            raise RefusedError("the certificate names no client") from error
        if (self._revoked / identity).exists():
            raise RefusedError(f"the certificate of {identity} was revoked")
        if not self._revoked.is_dir():
            raise RefusedError("the list of revoked clients is gone, so that nobody is let in")
        return identity
