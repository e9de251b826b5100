"""A log in memory: its tree, what is asked of it, and the key that signs its heads."""

import threading
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.transparency.heads import signed_content
from fedlm.fedlm_client.transparency.merkle import leaf_hash
from fedlm.fl_core.deployment.transparency.merkle_tree import MerkleTree


class SignedLog:
    """Any thread may use it."""

    def __init__(self, key: Ed25519PrivateKey):
        """Begin with no leaves."""
        self._key, self._name = key, key.public_key().public_bytes_raw()
        self._tree, self._lock = MerkleTree(), threading.Lock()
        self._newest: dict[str, dict[str, tuple[int, bytes]]] = {}  # by run and kind
        self._head = self._signed()

    @property
    def size(self) -> int:
        """How many leaves it has."""
        return self._tree.size

    def missing(self, leaves: Sequence[bytes]) -> Sequence[bytes]:
        """Give the leaves, of one run and kind in their order, that follow its newest; all where that is not there."""
        if not leaves:
            return leaves
        entry = messages.LogEntry.FromString(leaves[0])
        _, newest = self._newest.get(entry.run, {}).get(_kind(entry), (0, b""))
        return leaves[leaves.index(newest) + 1 :] if newest in leaves else leaves

    def add(self, leaves: Sequence[bytes]) -> None:
        """Add leaves, each a `LogEntry`, that are durable by now."""
        with self._lock:
            for leaf in leaves:
                entry = messages.LogEntry.FromString(leaf)
                self._newest.setdefault(entry.run, {})[_kind(entry)] = (self._tree.size, leaf)
                self._tree.append(leaf_hash(leaf))
            self._head = self._signed()

    def head(self) -> messages.SignedTreeHead:
        """Say where it stands."""
        return self._head

    def reply(self, sizes: Sequence[int], run: str = "") -> messages.LogReply:
        """Prove to who has seen it at some sizes how it grew since, and that what it tells of a run is in it."""
        with self._lock:
            head, tree = self._head, self._tree
            grown = [
                messages.ConsistencyProof(size=one, root=tree.root(one), path=tree.consistency(one, head.size))
                for one in sizes
                if 0 < one < head.size
            ]
            leaves = [
                messages.InclusionProof(index=index, leaf=leaf, path=tree.inclusion(index, head.size))
                for index, leaf in self._newest.get(run, {}).values()
            ]
            return messages.LogReply(tree_head=head, consistency=grown, leaves=leaves)

    def _signed(self) -> messages.SignedTreeHead:
        size = self._tree.size
        root = self._tree.root(size)
        return messages.SignedTreeHead(
            key=self._name, size=size, root=root, signature=self._key.sign(signed_content(size, root))
        )


def _kind(entry: messages.LogEntry) -> str:
    kind = entry.WhichOneof("kind") or ""
    # Clients that have no models are told more of a plan than others.
    return f"{kind} of programs" if kind == "plan" and entry.plan.HasField("plan") else kind
