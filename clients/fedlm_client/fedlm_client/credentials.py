"""A device's credentials, as `fedlm keys` writes them: a folder with `ca.pem`, `client.pem` and `client.key`."""

import ssl
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from .errors import ClientError


def client_tls(folder: Path) -> ssl.SSLContext:
    """Make the TLS of a client; raises ClientError where a file is missing, damaged or readable by others."""
    try:
        key = folder / "client.key"
        if key.stat().st_mode & 0o077:
            raise ClientError(f"{key}: others than its owner can read this private key; chmod 600 it")
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / "client.pem", key)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(
            f"{folder}: has no credentials that can be read ({error}); enrol this device again"
        ) from error
    return context


def name_of(folder: Path) -> str:
    """Give the name in a client's certificate; raises ClientError where there is none."""
    path = folder / "client.pem"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        (found,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError) as error:
        raise ClientError(f"{path}: no certificate can be read ({error}); enrol this device again") from error
    return str(found.value)
