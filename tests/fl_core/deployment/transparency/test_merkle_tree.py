"""Proofs of the log's tree: known ones, and every one of small trees, made by the server and checked as devices do."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fedlm_client.transparency.merkle import leaf_hash, node_hash, root_by_inclusion, roots_by_consistency
from fedlm.fl_core.deployment.transparency.merkle_tree import MerkleTree

# The reference tree of certificate-transparency-go, since then of transparency-dev/merkle, with its roots by size.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
# Its proofs (testdata/inclusion/2 and testdata/consistency/2 of transparency-dev/merkle), of 8 leaves.
INCLUSION_OF_5 = [
    "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
]
CONSISTENCY_OF_6 = ["0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a", *INCLUSION_OF_5[1:]]


def tree_of(leaves):
    tree = MerkleTree()
    for leaf in leaves:
        tree.append(leaf_hash(leaf))
    return tree


def numbered(size):
    return [str(number).encode() for number in range(size)]


def recursive_root(hashes):
    """The root as RFC 9162 (2.1.1) defines it."""
    if len(hashes) < 2:
        return hashes[0] if hashes else hashlib.sha256().digest()
    left = 1 << (len(hashes) - 1).bit_length() - 1
    return node_hash(recursive_root(hashes[:left]), recursive_root(hashes[left:]))


def test_the_reference_tree_has_its_known_roots_and_proofs():
    tree = tree_of(map(bytes.fromhex, LEAVES))
    assert [tree.root(size).hex() for size in range(9)] == ROOTS
    assert [one.hex() for one in tree.inclusion(5, 8)] == INCLUSION_OF_5
    assert [one.hex() for one in tree.consistency(6, 8)] == CONSISTENCY_OF_6


def test_every_proof_of_every_size_leads_to_the_defined_root():
    hashes = [leaf_hash(leaf) for leaf in numbered(70)]
    tree, roots = tree_of(numbered(70)), [recursive_root(hashes[:size]) for size in range(71)]
    assert [tree.root(size) for size in range(71)] == roots
    for size in range(1, 71):
        for index in range(size):
            assert root_by_inclusion(index, size, hashes[index], tree.inclusion(index, size)) == roots[size]
        for small in range(1, size + 1):
            proof = tree.consistency(small, size)
            assert roots_by_consistency(small, size, roots[small], proof) == (roots[small], roots[size])


def changed(path, data):
    """A path with a hash that is changed, missing, doubled or added."""
    place = data.draw(st.integers(0, len(path)))
    one = path[place : place + 1]
    others = [[bytes(32)], [bytes(32), *one], []] if one else [[bytes(32)]]
    return path[:place] + data.draw(st.sampled_from(others)) + path[place + 1 :]


@given(st.data())
def test_no_changed_proof_holds_nor_one_of_another_leaf_size_or_history(data):
    size = data.draw(st.integers(2, 70))
    index, small = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size - 1))
    leaves, other = numbered(size), data.draw(st.integers(0, small - 1))
    tree, forked = tree_of(leaves), tree_of([*leaves[:other], b"another", *leaves[other + 1 :]])
    root, path, grown = tree.root(size), tree.inclusion(index, size), tree.consistency(small, size)

    def included(leaf, path):
        return root_by_inclusion(index, size, leaf_hash(leaf), path) == root

    def consistent(small, before, path):
        return roots_by_consistency(small, size, before, path) == (before, root)

    assert included(leaves[index], path)
    assert consistent(small, tree.root(small), grown)
    wrong = [
        lambda: included(b"another", path),
        lambda: included(leaves[index], changed(path, data)),
        lambda: consistent(small, tree.root(small), changed(grown, data)),
        lambda: consistent(small, forked.root(small), grown),
        lambda: consistent(small, forked.root(small), forked.consistency(small, size)),
        lambda: consistent(size + 1, tree.root(small), grown),
    ]
    for claim in wrong:
        try:
            assert not claim()
        except ValueError:
            continue


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0)])
def test_no_leaf_is_outside_of_its_tree(index, size):
    with pytest.raises(ValueError, match="has none at"):
        root_by_inclusion(index, size, bytes(32), [])


def test_nodes_cut_elsewhere_are_no_proof():
    """Only lengths tell h||e, nothing, s from h, e, s: two leaves at one index otherwise."""
    first, honest, evil = (leaf_hash(one) for one in (b"first", b"honest", b"evil"))
    for path in ([honest + evil, b"", first], [honest, evil, first[:31]]):
        with pytest.raises(ValueError, match="must have 32"):
            roots_by_consistency(3, 4, bytes(32), path)
    for claim in (lambda: root_by_inclusion(0, 2, first, [honest + evil]), lambda: roots_by_consistency(2, 3, b"", [])):
        with pytest.raises(ValueError, match="must have 32"):
            claim()
