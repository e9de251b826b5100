"""The Merkle tree of a log, as RFC 9162 (section 2.1) has it, with SHA-256.

pymerkle is under the GPL and says that it needs an audit, sigstore's libraries check proofs of inclusion alone, and
others are not kept. So this is ours, held to the test vectors of transparency-dev's Go library.
"""

from collections.abc import Iterator

from fedlm.fedlm_client.transparency.merkle import EMPTY_ROOT, node_hash


class MerkleTree:
    """Grows leaf by leaf, and proves what it was. It keeps the hash of every whole subtree, two to a leaf."""

    def __init__(self) -> None:
        self._levels: list[list[bytes]] = [[]]

    @property
    def size(self) -> int:
        """How many leaves it has."""
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add a leaf by its hash."""
        self._levels[0].append(leaf)
        for height, level in enumerate(self._levels):
            if len(level) & 1:
                return
            if height + 1 == len(self._levels):
                self._levels.append([])
            self._levels[height + 1].append(node_hash(*level[-2:]))

    def root(self, size: int) -> bytes:
        """Compute the root that it had at a size."""
        return self._root(0, size) if size else EMPTY_ROOT

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Prove, to who has the root at a size, that the leaf at an index is in the tree (2.1.3.1)."""
        return list(self._path(index, 0, size))[::-1]

    def consistency(self, small: int, size: int) -> list[bytes]:
        """Prove, to who has the root at a size, that the tree is one grown from the smaller one (2.1.4.1)."""
        return list(self._growth(small, 0, size))[::-1] if 0 < small < size else []

    def _root(self, start: int, size: int) -> bytes:
        """Compute the root over so many leaves, where `start` is a multiple of a power of two no less than `size`."""
        if not size & (size - 1):
            height = size.bit_length() - 1
            return self._levels[height][start >> height]
        left = _left_of(size)
        return node_hash(self._root(start, left), self._root(start + left, size - left))

    def _path(self, index: int, start: int, size: int) -> Iterator[bytes]:
        while size > 1:
            left = _left_of(size)
            if index < left:
                yield self._root(start + left, size - left)
                size = left
            else:
                yield self._root(start, left)
                index, start, size = index - left, start + left, size - left

    def _growth(self, small: int, start: int, size: int) -> Iterator[bytes]:
        known = True
        while small < size:
            left = _left_of(size)
            if small <= left:
                yield self._root(start + left, size - left)
                size = left
            else:
                yield self._root(start, left)
                small, start, size, known = small - left, start + left, size - left, False
        if not known:
            yield self._root(start, size)


def _left_of(size: int) -> int:
    """Give the largest power of two below a size of two or more."""
    return 1 << ((size - 1).bit_length() - 1)
