"""Who a server or a client is, as `fedlm keys` writes it: a folder with a certificate, its key and the authority."""

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from ..errors import KeysError

SERVER, CLIENT = "server", "client"
AUTHORITY_FILE = "ca.pem"
"""Certificate of the authority; both sides have a copy, and believe what it signed. Where one authority follows another
it has both, the one that signs first."""


PrivateKey = ec.EllipticCurvePrivateKey


def read_credentials(folder: Path, side: str) -> x509.Certificate:
    """Read the certificate of one side, and check that it belongs to the key and the authority beside it.

    Raises:
      KeysError: a file is missing, damaged, not valid now, readable by others, or does not belong to the others.
    """
    path = folder / f"{side}.pem"
    authorities, certificate = read_certificates(folder / AUTHORITY_FILE), read_certificate(path)
    check_certificate(path, certificate, read_key(folder / f"{side}.key"), authorities)
    return certificate


def client_tls(folder: Path) -> ssl.SSLContext:
    """Make the TLS of a client; see `read_credentials` for its errors."""
    read_credentials(folder, CLIENT)
    context = authority_tls(folder)
    context.load_cert_chain(folder / f"{CLIENT}.pem", folder / f"{CLIENT}.key")
    return context


def authority_tls(folder: Path) -> ssl.SSLContext:
    """Make the TLS of who believes the authority in a folder; raises `KeysError` where there is none."""
    read_certificates(folder / AUTHORITY_FILE)
    return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / AUTHORITY_FILE))


def client_name(folder: Path) -> str:
    """Give the name in a client's certificate; see `read_credentials` for its errors."""
    return common_name(read_credentials(folder, CLIENT))


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Read the certificates in a PEM file, one at least; raises `KeysError` where it is missing or damaged."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise KeysError(f"{path}: no certificate can be read ({error}); `fedlm keys` makes them") from error


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate, the first in a PEM file; see `read_certificates` for its errors."""
    return read_certificates(path)[0]


def read_private_key(path: Path) -> PrivateKeyTypes:
    """Read a private key of any kind from its PEM file.

    Raises:
      KeysError: it is missing or damaged, or others than its owner can read it.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise KeysError(f"{path}: others than its owner can read this private key; chmod 600 it")
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise KeysError(f"{path}: no private key can be read ({error}); `fedlm keys` makes them") from error


def read_key(path: Path) -> PrivateKey:
    """Read a private key of an elliptic curve; see `read_private_key` for its errors."""
    key = read_private_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeysError(f"{path}: the private key is of another kind; expected one of an elliptic curve")
    return key


def check_certificate(
    path: Path, certificate: x509.Certificate, key: PrivateKey, authorities: Sequence[x509.Certificate]
) -> None:
    """Refuse credentials that the other side would refuse, before it is dialled.

    Raises:
      KeysError: the certificate is not valid now, not of this key or not of one of these authorities.
    """
    begins, ends, now = (
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        datetime.datetime.now(datetime.UTC),
    )
    if not begins <= now <= ends:
        advice = (
            "this clock is behind, or the one of the machine that made the certificate is ahead; set the clock"
            if now < begins
            else "make a new one with `fedlm keys`, or set the clock, if that is ahead"
        )
        raise KeysError(
            f"{path}: valid from {said_time(begins)} to {said_time(ends)}, but this machine's clock says "
            f"{said_time(now)}; {advice}"
        )
    if certificate.public_key() != key.public_key():
        raise KeysError(f"{path}: the certificate belongs to another key than the one beside it")
    if not any(signed_by(certificate, authority) for authority in authorities):
        raise KeysError(f"{path}: the certificate was not signed by the authority beside it, {AUTHORITY_FILE}")


def said_time(time: datetime.datetime) -> str:
    """Write a time in UTC with its zone, for people."""
    return f"{time.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Say whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def common_name(certificate: x509.Certificate) -> str:
    """Give the name in a certificate; raises `KeysError` where there is none, or more than one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise KeysError(f"a certificate has {len(names)} names, expected one; `fedlm keys` makes them")
    return str(names[0].value)
