"""Proofs of a Merkle tree as RFC 9162 (section 2.1) has it, with SHA-256, as whoever holds a root checks them."""

import hashlib
from collections.abc import Iterator, Sequence

_LENGTH = hashlib.sha256().digest_size


def leaf_hash(leaf: bytes) -> bytes:
    """Hash a leaf's bytes."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash two nodes into the one above them."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def check_hash(found: bytes) -> None:
    """Raise ValueError where it is no hash: two nodes of other lengths could be read as two others."""
    if len(found) != _LENGTH:
        raise ValueError(f"a hash has {len(found)} bytes, but must have {_LENGTH}")


EMPTY_ROOT = hashlib.sha256().digest()
"""Root of a tree without leaves."""


def root_by_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> bytes:
    """Compute the root of a tree of so many leaves that has a leaf, of this hash, at an index (2.1.3.2).

    Raises:
      ValueError: the path has not the hashes that such a proof has.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has none at {index}")
    found = leaf
    for sibling, is_left in _siblings(index, size - 1, path):
        check_hash(sibling)
        found = node_hash(sibling, found) if is_left else node_hash(found, sibling)
    return found


def roots_by_consistency(small: int, size: int, root: bytes, path: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Compute the roots of a tree and of one that it has grown to (2.1.4.2).

    Args:
      small: leaves of the smaller tree, one at least.
      size: leaves of the larger one.
      root: of the smaller tree, as it is known.
      path: the proof.

    Returns:
      The roots of both that follow. The proof holds where they are those that are known.

    Raises:
      ValueError: the path has not the hashes that such a proof has.
    """
    if not 0 < small <= size:
        raise ValueError(f"a tree of {small} leaves does not grow to one of {size}")
    for one in (root, *path):
        check_hash(one)
    if small == size:
        if path:
            raise ValueError("the path is too long")
        return root, root
    if not small & (small - 1):
        path = [root, *path]
    if not path:
        raise ValueError("the path is too short")
    node, last = small - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    before = after = path[0]
    for sibling, is_left in _siblings(node, last, path[1:]):
        if is_left:
            before, after = node_hash(sibling, before), node_hash(sibling, after)
        else:
            after = node_hash(after, sibling)
    return before, after


def _siblings(node: int, last: int, path: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Go up from a node to the root, where `last` is the last node of its level: each step of the path, and whether it
    stands left. Raises ValueError where the path does not end at the root."""
    for sibling in path:
        if not last:
            raise ValueError("the path is too long")
        is_left = bool(node & 1) or node == last
        yield sibling, is_left
        while is_left and not node & 1 and node:
            node, last = node >> 1, last >> 1
        node, last = node >> 1, last >> 1
    if last:
        raise ValueError("the path is too short")
