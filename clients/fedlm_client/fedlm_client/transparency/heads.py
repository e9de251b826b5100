"""Where a log stands: how many leaves it has, and their root, signed."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .. import messages_pb2 as messages
from ..errors import LogError
from .merkle import check_hash, leaf_hash, root_by_inclusion, roots_by_consistency

PURPOSE = b"fedlm log 1\n"
"""What is signed begins with it, so that a signature of something else is none of a head."""

_LONGEST_PATH = 128


def signed_content(size: int, root: bytes) -> bytes:
    """Give the bytes that the signature of a head is of."""
    return PURPOSE + struct.pack(">Q", size) + root


class Head(NamedTuple):
    """A signed tree head. `key` names the log."""

    key: bytes
    size: int
    root: bytes
    signature: bytes

    @staticmethod
    def read(shown: messages.SignedTreeHead) -> "Head":
        """Take what a server shows. Raises LogError where its signature does not hold."""
        return Head(shown.key, shown.size, shown.root, shown.signature).checked()

    @staticmethod
    def of_json(kept: dict[str, Any]) -> "Head":
        """Undo `as_json`, without a look at the signature; raises KeyError, TypeError or ValueError for other words."""
        key, root, signature = (bytes.fromhex(kept[name]) for name in ("key", "root", "signature"))
        return Head(key, int(kept["size"]), root, signature)

    def as_json(self) -> dict[str, Any]:
        """Make what a file has of it."""
        return {name: one.hex() if isinstance(one, bytes) else one for name, one in self._asdict().items()}

    def checked(self) -> "Head":
        """Return this; raises LogError where the signature does not hold, or is of what is no root."""
        try:
            check_hash(self.root)
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.signature, signed_content(self.size, self.root))
        except (InvalidSignature, ValueError, struct.error) as error:
            raise LogError(f"the head of {self.size} leaves is not signed with its key, or has no root") from error
        return self

    def has(self, leaf: bytes, index: int, path: Sequence[bytes]) -> bool:
        """Say whether a proof holds that a leaf is in the tree."""
        try:
            return root_by_inclusion(index, self.size, leaf_hash(leaf), path[:_LONGEST_PATH]) == self.root
        except ValueError:
            return False

    def root_at(self, small: int, root: bytes, path: Sequence[bytes]) -> bytes | None:
        """Find the root that the tree had at a smaller size, as a proof with a claimed root shows it.

        Returns:
          The root; nobody can make another proof of this head with another one. None where the proof does not hold.
        """
        try:
            before, after = roots_by_consistency(small, self.size, root, path[:_LONGEST_PATH])
        except ValueError:
            return None
        return root if (before, after) == (root, self.root) else None
