"""Masks: streams and keys of the published values, uniform, and integers packed to the bit."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedlm.fedlm_client.secure_aggregation import keys, masks

GOLDEN_KEY = "35ff7174a5fcfd3d3a0c0b81a7754e0a7ec49f61f045b6bfdc91b68586deb564"


def stream(key, length, bits=32):
    vector = np.zeros(length, masks.word(bits))
    masks.add_mask(vector, key, 1)
    return vector


def uniform(residues, bits, false_alarms):
    """Pearson's test that residues modulo 2^bits are uniform."""
    counts = np.bincount(residues, minlength=1 << bits)
    expected = len(residues) / len(counts)
    return np.sum((counts - expected) ** 2) / expected < chi2.isf(false_alarms, len(counts) - 1)


def test_two_clients_come_to_the_key_and_stream_of_the_golden_values():
    one, other = (X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
    key = keys.shared_key(one, keys.public_of(other), b"fedlm secagg mask v1")
    assert key.hex() == GOLDEN_KEY == keys.shared_key(other, keys.public_of(one), b"fedlm secagg mask v1").hex()
    words = stream(key, 4)
    assert words.tolist() == [1259150567, 1080946960, 3897178990, 2343686761]
    assert (words & 0xFFFFF).tolist() == [859367, 913680, 670574, 119401]


def test_a_mask_that_is_taken_off_leaves_the_vector_across_blocks_and_another_key_does_not():
    for bits in (12, 30):
        vector = np.arange(2 * masks.BLOCK + 7).astype(masks.word(bits))
        masked = vector.copy()
        masks.add_mask(masked, b"k" * 32, 1)
        masks.add_mask(vector, b"k" * 32, 1)
        assert np.array_equal(masked, vector)
        masks.add_mask(masked, b"k" * 32, -1)
        assert np.array_equal(masked, np.arange(len(vector)).astype(masks.word(bits)))


def test_every_bit_of_a_key_counts_also_where_keys_are_alike_when_folded_to_32_bits():
    folded_alike = bytes([1, 0, 0, 0] * 2) + bytes(24)
    streams = [
        stream(key, 64)
        for key in (bytes(32), folded_alike, *(bytes(one) + b"\1" + bytes(31 - one) for one in range(32)))
    ]
    assert len({one.tobytes() for one in streams}) == len(streams)


def test_a_stream_is_uniform_over_all_residues():
    # The key is fixed, so this either holds or not; another key fails with probability 1e-6.
    assert uniform(stream(b"\7" * 32, 1 << 18, 16), 16, 1e-6)
    assert uniform(stream(b"\7" * 32, 1 << 18) & 0xFFF, 12, 1e-6)


@given(st.integers(8, 32), st.integers(0, 40), st.integers(0, 2**32))
def test_what_is_packed_is_read_back_in_as_few_bytes_as_its_bits(bits, length, seed):
    vector = np.random.default_rng(seed).integers(0, 1 << bits, length).astype(masks.word(bits))
    content = masks.packed(vector, bits)
    assert len(content) == masks.packed_size(length, bits)
    assert np.array_equal(masks.unpacked(content, length, bits), vector)


def test_bytes_of_another_length_or_behind_the_last_value_are_refused():
    content = masks.packed(np.ones(masks.BLOCK + 1, np.uint32), 20)
    assert masks.unpacked(content, masks.BLOCK + 1, 20).tolist() == [1] * (masks.BLOCK + 1)
    for wrong in (content[:-1], content + b"\0", content[:-1] + b"\xf1"):
        with pytest.raises(ValueError, match=r"values of 20 bits|behind the last"):
            masks.unpacked(wrong, masks.BLOCK + 1, 20)
