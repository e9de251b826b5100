"""Random bits against the standard they follow, and the normal numbers made of them. Every statistical test here has a
false-alarm rate of 1e-6."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.stats
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.delta import LEAST_DELTA, check_delta, default_delta, planned_delta
from fedlm.fl_core.privacy.noise import noise_source
from fedlm.fl_core.privacy.noise.chacha20 import chacha20_blocks
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from, noise_key, normal_blocks, normal_pair

MANY = 400_000


def test_the_key_stream_is_openssls():
    key, nonce, first, blocks = fresh_secret(), fresh_secret()[:12], (1 << 32) - 40, 40
    counters = first + np.arange(blocks, dtype=np.uint32)
    words = chacha20_blocks(np.frombuffer(key, "<u4"), np.frombuffer(nonce, "<u4"), jnp.asarray(counters))
    cipher = Cipher(algorithms.ChaCha20(key, first.to_bytes(4, "little") + nonce), mode=None)
    assert np.stack(words, axis=-1).astype("<u4").tobytes() == cipher.encryptor().update(bytes(64 * blocks))


def pair_of(bits, below=0, angle=0):
    """The pair that 128 bits, the 64 below them, and the 64 of the angle give."""
    words = [bits >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0)]
    words += [below >> 32, below & 0xFFFFFFFF, angle >> 32, angle & 0xFFFFFFFF]
    with jax.enable_x64(True):
        return [float(value) for value in normal_pair(*(jnp.asarray(word, jnp.uint32) for word in words))]


@pytest.mark.parametrize("below", [0, 1 << 11, (1 << 64) - 1])
def test_the_radius_has_the_precision_of_float64_at_both_ends(below):
    """So normal numbers reach to 13.3, far beyond those of 32 bits."""
    for zeros in (0, 1, 31, 32, 95, 128):
        one, other = pair_of((1 << 128) - 1 >> zeros, below)
        with mpmath.workdps(50):
            uniform = mpmath.mpf(2) ** -zeros * (1 - mpmath.mpf(below) / mpmath.mpf(2) ** 65)
            exact = mpmath.sqrt(-2 * mpmath.log(uniform))
            assert abs(one - exact) <= exact * mpmath.mpf(2) ** -51
        assert other == 0
    assert one > 13.3


@pytest.fixture(scope="module")
def drawn():
    return np.asarray(noise_from(fresh_secret(), {"x": np.zeros(MANY, np.float32)})([(1.0, (3,))])["x"])


@pytest.mark.long
def test_many_draws_are_standard_normal(drawn):
    assert drawn.dtype == np.float64
    assert scipy.stats.kstest(drawn, "norm").pvalue > 1e-6
    for moment, (expected, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs(np.mean(drawn**moment) - expected) < 4.9 * np.sqrt(variance / MANY)


@pytest.mark.parametrize("apart", [1, 2, 3, 4])
def test_numbers_of_a_pair_and_of_a_block_are_independent(drawn, apart):
    """Also their sizes are, which both numbers of a pair have of one radius."""
    one, other = drawn[:-apart:4], drawn[apart::4]
    for function in (np.asarray, np.square, np.abs):
        assert scipy.stats.pearsonr(function(one), function(other)[: len(one)]).pvalue > 1e-6
    signs = (np.sign(one) + 3 * np.sign(other[: len(one)])).astype(int)
    assert scipy.stats.chisquare(np.unique(signs, return_counts=True)[1]).pvalue > 1e-6


def test_all_256_bits_of_a_draws_key_are_used():
    key = noise_key(fresh_secret(), (1, 2))
    assert key.shape == (8,)

    def first(key):
        with jax.enable_x64(True):
            return float(normal_blocks(jnp.asarray(key), jnp.uint32(0), jnp.uint32(0))[0])

    changed = [first(key ^ np.eye(8, dtype=np.uint32)[word]) for word in range(8)]
    assert len({first(key), *changed}) == 9


@pytest.mark.long
def test_no_number_depends_on_how_many_are_made_at_once(monkeypatch):
    def draw(size):
        return noise_from(bytes(32), [np.zeros(size)])([(1.0, (1,))])[0]

    at_once = draw(1003)
    monkeypatch.setattr(noise_source, "_BLOCKS_ON_CPU", 7)
    jax.clear_caches()
    np.testing.assert_array_equal(draw(1003), at_once)
    np.testing.assert_array_equal(draw(1001), at_once[:1001])


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 5), ("devices",)),  # each device has 10 numbers, which are not whole blocks
        ((2, 8, 6), (None, "devices")),
        ((228, 61), ("devices",)),  # a processor's vectors end elsewhere in the part than in the whole
        ((7,), ()),
    ],
)
def test_devices_that_draw_a_part_draw_what_the_whole_has_there(shape, spec):
    mesh = Mesh(np.array(jax.devices()[:4]), "devices")
    like, terms = {"a": np.zeros(5), "b": np.zeros(shape)}, [(1.0, (0,)), (-0.5, (1,))]
    shardings = {"a": NamedSharding(mesh, PartitionSpec()), "b": NamedSharding(mesh, PartitionSpec(*spec))}
    found = noise_from(bytes(32), like, shardings)(terms)
    assert found["b"].sharding == shardings["b"]
    for name, whole in noise_from(bytes(32), like)(terms).items():
        np.testing.assert_array_equal(found[name], whole)


@pytest.mark.long
def test_no_number_depends_on_which_leaves_are_drawn_by_one_loop(monkeypatch):
    like = {name: np.zeros(shape) for name, shape in zip("abcde", [(3, 5), (7,), (3, 5), (), (3, 5)], strict=True)}
    together = noise_from(bytes(32), like)([(1.0, (0,))])
    assert len({float(together[name].ravel()[0]) for name in "ace"}) == 3
    monkeypatch.setattr(noise_source, "_MOST_TWICE", 30)
    jax.clear_caches()
    for name, leaf in noise_from(bytes(32), like)([(1.0, (0,))]).items():
        np.testing.assert_array_equal(leaf, together[name])
    for number, leaf in enumerate(together.values()):
        with jax.enable_x64(True):
            blocks = normal_blocks(noise_key(bytes(32), (0,)), jnp.uint32(number), jnp.arange(4, dtype=jnp.uint32))
        np.testing.assert_array_equal(np.ravel(leaf), np.ravel(blocks)[: leaf.size])


def test_no_delta_is_below_what_noise_is_made_for():
    check_delta(LEAST_DELTA)
    with pytest.raises(ConfigurationError, match="must be at least 1e-15"):
        check_delta(LEAST_DELTA / 2)


def test_a_plan_needs_a_delta_where_its_units_leave_none_and_a_run_that_is_not_private_does_not():
    for units in (1, 1e15):
        assert default_delta(units) == pytest.approx(units**-1.1)
        assert planned_delta(1e-6, units) == 1e-6
        with pytest.raises(ConfigurationError, match="units delta would be"):
            planned_delta(None, units)
    assert planned_delta(None, 1000) == default_delta(1000)
