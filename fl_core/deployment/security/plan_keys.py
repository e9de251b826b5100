"""The server's key for plans, Ed25519: devices run the programs of plans that it has signed, and of no others."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlm.fedlm_client.errors import KeysError
from fedlm.fedlm_client.link.credentials import read_private_key
from fedlm.fl_core.atomic_files import create_privately, make_folder, write_atomically

PLAN_KEY_FILE, PUBLIC_PLAN_KEY_FILE = "plan.key", "plan.pub"
PURPOSE = b"fedlm plan 1\n"
"""What precedes a manifest where it is signed, so that a signature of anything else is none of a plan."""

_PEM = serialization.Encoding.PEM


def create_plan_key(folder: Path) -> Path:
    """Make a key in a folder, for its owner alone, and beside it the public key for devices, whose path is returned;
    raises `KeysError` where there is one."""
    make_folder(folder, private=True)
    key, public = Ed25519PrivateKey.generate(), folder / PUBLIC_PLAN_KEY_FILE
    private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        create_privately(folder / PLAN_KEY_FILE, private)
    except FileExistsError as error:
        raise KeysError(f"{folder}: has a key for plans already; give another folder to make another") from error
    write_atomically(public, key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return public


class PlanSigner:
    """Signs plans with the key in a file."""

    def __init__(self, path: Path):
        """Read the key; raises `KeysError` where it is missing or damaged, others can read it, or it is none for
        plans."""
        key = read_private_key(path)
        if not isinstance(key, Ed25519PrivateKey):
            raise KeysError(f"{path}: is not an Ed25519 key for plans; `fedlm keys plan` makes one")
        self._key = key

    def sign(self, content: bytes, purpose: bytes = PURPOSE) -> bytes:
        """Make the signature of a plan's manifest, or of what else a purpose names, 64 bytes; the same each time."""
        return self._key.sign(purpose + content)
