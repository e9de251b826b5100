"""Whose plans a device runs: those that are signed with a key that its owner was given."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ..errors import ClientError, PlanError

PLAN = b"fedlm plan 1\n"
"""What is signed begins with it, so that a signature of something else is none of a plan."""

_BEGINS = b"-----BEGIN PUBLIC KEY-----"


def read_public_keys(path: Path) -> list[Ed25519PublicKey]:
    """Read the public keys in a PEM file, one at least: several while one key follows another.

    Raises:
      ClientError: it cannot be read, or has a key of another kind.
    """
    try:
        parts = path.read_bytes().split(_BEGINS)[1:]
        keys = [serialization.load_pem_public_key(_BEGINS + part) for part in parts]
    except (OSError, ValueError) as error:
        raise ClientError(
            f"{path}: no key for plans can be read ({error}); ask the server's operator for it"
        ) from error
    found = [key for key in keys if isinstance(key, Ed25519PublicKey)]
    if not found or len(found) < len(keys):
        raise ClientError(
            f"{path}: holds no Ed25519 public key in PEM, or others too; ask the server's operator for it"
        )
    return found


def check_signature(content: bytes, signature: bytes, keys: list[Ed25519PublicKey]) -> None:
    """Refuse, with `PlanError`, a manifest that none of the keys has signed."""
    if not signature:
        raise PlanError("the plan is not signed, and this client runs only signed plans")
    for key in keys:
        try:
            key.verify(signature, PLAN + content)
            return
        except InvalidSignature:
            continue
    raise PlanError(
        "the plan's signature is not by a key that this client trusts; the device's owner may have another key"
    )
