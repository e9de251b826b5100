"""A client's keys of one attempt, signed by the key of its certificate, and what is derived from two clients' keys."""

import datetime
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID

from .. import messages_pb2 as messages
from ..errors import KeysError, UnsafeSumError
from ..link.credentials import common_name, signed_by
from ..own_participation import asked_of_all
from .canonical import digest, labelled

_DER = serialization.Encoding.DER
_NONCE = bytes(12)
_UNREADABLE = (UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
_FIELD = 2**255 - 19
_KEY_BYTES = 32
LOW_ORDER = {
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    _FIELD - 1,
}
"""X25519 keys with which everybody knows the outcome: all points of order 8 or less, of the curve and of its twist."""
_SIGNED_WITH = ec.ECDSA(utils.Prehashed(hashes.SHA256()))
_REMEMBERED = 1 << 12
"""Right signatures that a process remembers by all that was verified. Members that share one, as virtual ones do, then
verify each once, and not each for all."""


class AttemptName(NamedTuple):
    """Which attempt at which sum: no key, signature or digest of one is of any use in another."""

    run: str
    round_number: int
    attempt: bytes  # drawn by the server for each attempt
    request_digest: bytes  # SHA-256 of what all members are asked; see `own_participation.asked_of_all`

    @classmethod
    def of(cls, asked: messages.RoundConfiguration) -> "AttemptName":
        """Name the attempt that a request is for."""
        return cls(asked.run, asked.round_number, asked.attempt, asked_of_all(asked))


class Advertisement(NamedTuple):
    """Public keys of a client in one attempt."""

    certificate: bytes  # DER
    sealing_key: bytes  # X25519; shares are encrypted between these
    masking_key: bytes  # X25519; masks follow from these
    plan: bytes  # digest of the manifest of the plan that it trains by; empty where it has the models itself
    signature: bytes  # ECDSA with SHA-256, DER, by the certificate's key


class Identity(NamedTuple):
    """A client's certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def advertise(self, name: AttemptName, sealing_key: bytes, masking_key: bytes, plan: bytes = b"") -> Advertisement:
        """Sign public keys for an attempt, and by which plan this client trains."""
        unsigned = Advertisement(self.certificate.public_bytes(_DER), sealing_key, masking_key, plan, b"")
        return unsigned._replace(signature=self.key.sign(_signed(name, unsigned), _SIGNED_WITH))

    def sign_story(self, story: bytes) -> bytes:
        """Sign a member's story of an attempt: see `story_of`."""
        return self.key.sign(story, _SIGNED_WITH)


class _Owner(NamedTuple):
    """Whose certificate it is, and when it is valid."""

    name: str
    begins: datetime.datetime
    ends: datetime.datetime


def story_of(roster: bytes, dealt: Collection[int], survivors: Collection[int]) -> bytes:
    """Hash who has dealt and who survives under a roster's digest; members that sign the same reveal together."""
    return digest("survivors", roster, sorted(dealt), sorted(survivors))


def has_signed(one: Advertisement, story: bytes, signature: bytes) -> bool:
    """Say whether the member with that advertisement, which was checked before, has signed a story."""
    try:
        _verify(one.certificate, signature, story)
    except InvalidSignature:
        return False
    return True


@functools.lru_cache(_REMEMBERED)
def _verify(certificate: bytes, signature: bytes, signed: bytes) -> None:
    """Verify a signature of what has a SHA-256; raises `InvalidSignature`."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(signature, signed, _SIGNED_WITH)


def check_advertisement(
    name: AttemptName, one: Advertisement, authorities: Sequence[x509.Certificate], now: datetime.datetime
) -> str:
    """Verify who has signed keys for an attempt.

    Returns:
      The name in the certificate.

    Raises:
      UnsafeSumError: the certificate is not of these authorities or not valid now, or did not sign these keys.
    """
    owner, begins, ends = _checked(one, tuple(authorities), name)
    if not begins <= now <= ends:
        raise UnsafeSumError(f"the certificate of {owner} is not valid now")
    return owner


@functools.lru_cache(_REMEMBERED)
def _checked(one: Advertisement, authorities: tuple[x509.Certificate, ...], name: AttemptName) -> _Owner:
    """Verify all but the time now; see `check_advertisement` for errors, after which nothing is remembered."""
    try:
        certificate = x509.load_der_x509_certificate(one.certificate)
        key, owner = certificate.public_key(), common_name(certificate)
        if not any(signed_by(certificate, authority) for authority in authorities):
            raise UnsafeSumError(f"the certificate of {owner} is not of an authority that this client believes")
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise UnsafeSumError(f"the certificate of {owner} has a key of another kind; expected an elliptic curve's")
        key.verify(one.signature, _signed(name, one), _SIGNED_WITH)
        if not _is_for_clients(certificate):
            raise UnsafeSumError(f"the certificate of {owner} is none of a client")
        for public in (one.sealing_key, one.masking_key):
            _check_public(public)
        if len(one.plan) not in (0, 32):
            raise ValueError(f"a plan's digest of {len(one.plan)} bytes")
    except (ValueError, KeysError, *_UNREADABLE) as error:
        raise UnsafeSumError(f"an advertisement cannot be read ({error})") from error
    except InvalidSignature as error:
        raise UnsafeSumError(f"{owner} has not signed these keys for this attempt") from error
    return _Owner(owner, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _is_for_clients(certificate: x509.Certificate) -> bool:
    """Say whether a certificate is for clients: that of a server or an aggregator makes no member."""
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in uses


def _check_public(key: bytes) -> None:
    """Refuse a key that gives no secret, and other bytes for a key than its own; raises `ValueError`."""
    number = int.from_bytes(key, "little")
    if len(key) != _KEY_BYTES or number >= _FIELD:
        raise ValueError("a public key is not written in the one way")
    if number in LOW_ORDER:
        raise ValueError("a public key gives no secret")


def public_of(key: X25519PrivateKey) -> bytes:
    """Give the 32 bytes of a private key's public key."""
    return key.public_key().public_bytes_raw()


def shared_key(own: X25519PrivateKey, other: bytes, info: bytes) -> bytes:
    """Derive 32 bytes that two clients alone know, by X25519 and HKDF-SHA256 without a salt.

    Raises:
      UnsafeSumError: the other's key is none, or one with which everybody knows the outcome.
    """
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise UnsafeSumError("a public key is none, or gives no secret") from error
    return HKDF(hashes.SHA256(), 32, None, info).derive(shared)


def sealing_info(roster: bytes, sender: int, receiver: int) -> bytes:
    """Name the use of a key that encrypts one client's shares for another, under a roster's digest."""
    return labelled("share", roster, sender, receiver)


def mask_key(own: X25519PrivateKey, other: bytes, roster: bytes, pair: tuple[int, int]) -> bytes:
    """Derive the key of the mask that two members of a roster share, whatever their order."""
    return shared_key(own, other, labelled("mask", roster, min(pair), max(pair)))


def sealed(key: bytes, content: bytes, info: bytes) -> bytes:
    """Encrypt by AES-256-GCM. The nonce is fixed: a key is for one message."""
    return AESGCM(key).encrypt(_NONCE, content, info)


def opened(key: bytes, content: bytes, info: bytes) -> bytes:
    """Decrypt what `sealed` encrypted; raises `UnsafeSumError` where a bit was changed."""
    try:
        return AESGCM(key).decrypt(_NONCE, content, info)
    except (InvalidTag, ValueError) as error:
        raise UnsafeSumError("encrypted shares were changed on their way, or are of another roster") from error


def _signed(name: AttemptName, one: Advertisement) -> bytes:
    return digest("keys", *name, one.sealing_key, one.masking_key, one.plan)
