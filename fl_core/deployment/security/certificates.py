"""X.509 certificates: one authority signs the server's and every client's, and a client's name is its identity.

All keys are ECDSA on P-256. The profile is that of RFC 5280; names of hosts stand in the subject's alternative names.
"""

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlm.fedlm_client.errors import KeysError
from fedlm.fedlm_client.link.credentials import PrivateKey

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_DAYS = 36_500
_EARLIER = datetime.timedelta(minutes=10)
_USES = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")


def check_name(name: str) -> str:
    """Refuse, with `KeysError`, a name that no client can have."""
    if not _NAME.fullmatch(name):
        raise KeysError(
            f"{name!r} cannot name a client: give 1 to 64 letters, digits, points, dashes or underscores, and begin "
            "with a letter or a digit"
        )
    return name


def new_key() -> PrivateKey:
    """Make a private key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def sign_authority(key: PrivateKey, days: int) -> x509.Certificate:
    """Make an authority that signs for itself for some days; raises `KeysError` where these are out of range."""
    # A name of its own, so that a certificate of another deployment is refused for what it is.
    name = _name(f"fedlm authority {secrets.token_hex(4)}")
    builder = _builder(name, name, key.public_key(), days=days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def sign_server(
    authority: x509.Certificate,
    authority_key: PrivateKey,
    key: ec.EllipticCurvePublicKey,
    hosts: Sequence[str],
    *,
    days: int,
) -> x509.Certificate:
    """Make the certificate of a server that clients dial by names or addresses, not valid longer than the authority's.

    Raises:
      KeysError: a host is none, or the days are out of range.
    """
    builder = _builder(_name("fedlm server"), authority.subject, key, days=days, latest=authority.not_valid_after_utc)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return _sign_end(builder, authority, authority_key, ExtendedKeyUsageOID.SERVER_AUTH)


def sign_client(
    authority: x509.Certificate, authority_key: PrivateKey, key: ec.EllipticCurvePublicKey, name: str, *, days: int
) -> x509.Certificate:
    """Make a client's certificate, not valid longer than the authority's.

    Raises:
      KeysError: the name is none, or the days are out of range.
    """
    builder = _builder(_name(check_name(name)), authority.subject, key, days=days, latest=authority.not_valid_after_utc)
    return _sign_end(builder, authority, authority_key, ExtendedKeyUsageOID.CLIENT_AUTH)


def make_request(key: PrivateKey) -> bytes:
    """Ask for a certificate, in PEM. The request holds the public key alone: the authority knows the name."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """Find the key that a request in PEM, of which nothing is trusted, wants a certificate for.

    Raises:
      KeysError: it is not a request, its signature is wrong, or the key is not one on P-256.
    """
    try:
        found = x509.load_pem_x509_csr(request)
        key, valid = found.public_key(), found.is_signature_valid
    except Exception as error:
        # The parser raises whatever it likes.
        raise KeysError("this is not a request for a certificate, in PEM") from error
    if not valid or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeysError("the request for a certificate is not signed with its own key, on P-256")
    return key


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Give the names and addresses that a server's certificate is for."""
    try:
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *named.get_values_for_type(x509.DNSName),
        *map(str, named.get_values_for_type(x509.IPAddress)),
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Write a certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    """Write a private key in PEM, not encrypted: for a file that only its owner can read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", host):
        raise KeysError(f"{host!r} is not a host: give a name such as fl.example.org, or an address, without a port")
    return x509.DNSName(host)


def _key_usage(**uses: bool) -> x509.KeyUsage:
    names = ("digital_signature", "key_cert_sign", "crl_sign", "decipher_only", *_USES)
    return x509.KeyUsage(**dict.fromkeys(names, False) | uses)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    days: int,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    if not 1 <= days <= MOST_DAYS:
        raise KeysError(f"a certificate cannot be valid for {days} days; give 1 to {MOST_DAYS}")
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Clocks of devices run ahead and behind.
        .not_valid_before(now - _EARLIER)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _sign_end(
    builder: x509.CertificateBuilder,
    authority: x509.Certificate,
    authority_key: PrivateKey,
    purpose: x509.ObjectIdentifier,
) -> x509.Certificate:
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
    )
    return builder.sign(authority_key, hashes.SHA256())
