"""One suite for every way an update can travel."""

import zlib
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.updates.compressors import Scheme, compress_update, decompress_update, shapes_of
from fedlm.fl_core.updates.quantization import _uniform
from fedlm.fl_core.updates.registry import (
    COMPRESSION_OF_BITS,
    COMPRESSIONS,
    ROTATED,
    CompressionName,
    compressor_of,
    make_compressor,
)
from fedlm.fl_core.updates.rotation import rotate, rotate_back, rotated_size
from fedlm.fl_core.updates.update_bytes import (
    WireError,
    check_update,
    download_bytes,
    pack_update,
    squared_norm,
    unpack_update,
    upload_bytes,
)
from tests.support.properties import costly

EVERY = COMPRESSIONS | {f"{name}, rotated": compressor for name, compressor in ROTATED.items()}
UNIFORM = {name: compressor for name, compressor in EVERY.items() if "bits" in compressor.scheme.settings}


QUICK = ("float32", "uniform2", "uniform8", "uniform4, rotated", "powersgd4")
# Codes of two bytes, the fewest levels where they are rotated, and factors of one column. Others differ by a number.
LONG = ("uniform16", "uniform16, rotated", "uniform2, rotated", "powersgd1")


def each_of(compressors):
    marks = {name: pytest.mark.long if name in LONG else pytest.mark.thorough for name in compressors}
    marks |= dict.fromkeys(QUICK, ())
    return pytest.mark.parametrize(
        "compressor", [pytest.param(one, id=name, marks=marks[name]) for name, one in compressors.items()]
    )


UPDATE = {
    "matrix": np.random.default_rng(0).normal(size=(37, 29)).astype(np.float32),
    "bias": np.random.default_rng(1).normal(size=(11,)).astype(np.float32),
    "scalar": np.float32(3.5).reshape(()),
    "constant": np.full((5, 3), -2.25, np.float32),
}


def round_trip(compressor, update, key):
    return decompress_update(compressor, key, compress_update(compressor, key, update), update)


@each_of(EVERY)
def test_nothing_becomes_nothing_and_large_numbers_stay_finite(compressor):
    update = {"zeros": jnp.zeros((33, 31)), "large": 1e15 * jnp.asarray(UPDATE["matrix"]), "one": jnp.array([1e-30])}
    received = round_trip(compressor, update, jax.random.key(0))
    np.testing.assert_allclose(received["zeros"], 0, atol=1e-30)
    assert np.isfinite(received["large"]).all()
    np.testing.assert_allclose(received["one"], 1e-30, rtol=1e-3)
    if compressor is COMPRESSIONS["float32"]:
        jax.tree_util.tree_map(np.testing.assert_array_equal, received, update)


@each_of(UNIFORM)
def test_error_is_within_one_step_of_the_tensor(compressor):
    bits, rotation = compressor.scheme.settings.values()
    received = round_trip(compressor, UPDATE, jax.random.key(0))
    for name, values in UPDATE.items():
        error = np.abs(np.asarray(received[name]) - values)
        if rotation:
            # A rotation spreads each rounding error over its block, but keeps the whole error's L2 norm.
            step = 2 * np.linalg.norm(values) / (2**bits - 1)
            assert np.linalg.norm(error) <= step * np.sqrt(rotated_size(values.size)) + 1e-5
        else:
            assert np.all(error <= np.ptp(values) / (2**bits - 1) * 1.001 + 1e-6)
            np.testing.assert_array_equal(received["constant"], UPDATE["constant"])


@each_of(UNIFORM)
def test_quantization_is_unbiased(compressor):
    """Mean of 4,000 round trips against the value: a z-test per value.

    With 60 values and a Bonferroni-corrected two-sided threshold of z = 6 the false-alarm rate is below
    60 * 2e-9 = 1.2e-7 for each kind (the key is fixed, so a pass stays a pass). The allowance of 2^-16 of the
    tensor's range covers the documented resolution of the random numbers.
    """
    values = jnp.asarray(np.random.default_rng(5).uniform(-1, 3, size=60), jnp.float32)
    keys = jax.random.split(jax.random.key(11), 4000)
    samples = np.asarray(jax.jit(jax.vmap(lambda key: round_trip(compressor, [values], key)[0]))(keys), np.float64)
    deviation = np.abs(samples.mean(axis=0) - np.asarray(values, np.float64))
    assert np.all(deviation <= 6 * samples.std(axis=0, ddof=1) / np.sqrt(len(keys)) + 4 * 2.0**-16)


def test_rounding_is_stochastic_with_the_right_variance():
    """A value that lies a fraction f between two codes has variance f (1 - f) step^2 (Suresh et al. 2017).

    20,000 samples give the variance a relative standard error of about 1 %; 8 % is 8 standard errors.
    """
    values = jnp.asarray([0.0, 3.0, 0.25, 1.5])
    compressor = make_compressor("uniform2")
    keys = jax.random.split(jax.random.key(2), 20_000)
    samples = np.asarray(jax.jit(jax.vmap(lambda key: round_trip(compressor, [values], key)[0]))(keys))
    np.testing.assert_allclose(samples.var(axis=0)[2:], [0.25 * 0.75, 0.25], rtol=0.08)


@each_of(EVERY)
def test_wire_form_is_exactly_as_small_as_it_says(compressor):
    compressed = jax.jit(compress_update, static_argnums=0)(compressor, jax.random.key(0), UPDATE)
    message = pack_update(compressor, compressed, UPDATE)
    assert len(message) == upload_bytes(compressor, UPDATE)
    check_update(compressor, message, UPDATE)
    key, arrived = jax.random.key(0), jnp.asarray(np.frombuffer(message, np.uint8))
    received = decompress_update(compressor, key, unpack_update(compressor, arrived, UPDATE), UPDATE)
    expected = decompress_update(compressor, jax.random.key(0), compressed, UPDATE)
    assert jax.eval_shape(lambda: received) == jax.eval_shape(lambda: UPDATE)
    jax.tree_util.tree_map(np.testing.assert_array_equal, received, expected)


@pytest.mark.long
@each_of(EVERY)
def test_the_norm_of_an_update_is_known_from_its_bytes(compressor):
    key, rng, update = jax.random.key(3), np.random.default_rng(3), {}
    for shape, spread in (((3,), 1.0), ((16384,), 0.01), ((128, 130), 1.0), ((50001,), 0.01)):
        values = spread * rng.normal(size=shape) + 0.3
        # Each tensor counts for as much as any other.
        update[str(shape)] = jnp.asarray(values / np.linalg.norm(values), jnp.float32)
    compressed = compress_update(compressor, key, update)
    message = jnp.asarray(np.frombuffer(pack_update(compressor, compressed, update), np.uint8))
    found = jax.jit(squared_norm, static_argnums=(0, 3))(compressor, key, message, tuple(shapes_of(update)))
    leaves = jax.tree_util.tree_leaves(decompress_update(compressor, key, compressed, update))
    expected = sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in leaves)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_eight_bits_are_one_byte_a_value_and_two_floats_a_tensor():
    values = sum(leaf.size for leaf in UPDATE.values())
    header_and_checksum = 12
    assert upload_bytes(make_compressor("uniform8"), UPDATE) == values + 8 * len(UPDATE) + header_and_checksum
    assert download_bytes(UPDATE) == 4 * values


@costly(2)
@given(st.data(), st.sampled_from(list(EVERY.values())))
def test_any_damage_on_the_wire_is_refused(data, compressor):
    compressed = compress_update(compressor, jax.random.key(0), UPDATE)
    message = bytearray(pack_update(compressor, compressed, UPDATE))
    position = data.draw(st.integers(0, len(message) - 1))
    message[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        check_update(compressor, bytes(message), UPDATE)


@each_of(EVERY)
def test_another_plan_another_length_and_numbers_that_are_not_finite_are_refused(compressor):
    tensor = {"x": jnp.asarray(UPDATE["matrix"])}
    message = pack_update(compressor, compress_update(compressor, jax.random.key(0), tensor), tensor)
    for other in EVERY.values():
        if other is not compressor and upload_bytes(other, tensor) == len(message):
            with pytest.raises(WireError, match="not made for this plan"):
                check_update(other, message, tensor)
    with pytest.raises(WireError, match="not made for this plan"):
        check_update(compressor, message, {"x": tensor["x"].T})
    with pytest.raises(WireError, match=f"has {len(message) - 1} bytes"):
        check_update(compressor, message[:-1], tensor)
    for place, value in ((8, np.nan), (12, np.inf)):
        body = message[:place] + np.float32(value).tobytes() + message[place + 4 : -4]
        with pytest.raises(WireError, match="not finite"):
            check_update(compressor, body + np.uint32(zlib.crc32(body)).tobytes(), tensor)


@pytest.mark.long
@costly(15)
@given(st.sampled_from((1, 1023, 1024, 1025, 5000)), st.integers(0, 2**31))
def test_rotation_keeps_norms_and_is_undone(size, seed):
    values = jnp.asarray(np.random.default_rng(seed).normal(size=size), jnp.float32)
    key = jax.random.key(seed)
    rotated = rotate(key, values)
    assert rotated.size == rotated_size(size) < size + 1024
    np.testing.assert_allclose(jnp.linalg.norm(rotated), jnp.linalg.norm(values), rtol=1e-4)
    # Ten additions of float32 each way, of numbers as large as the largest.
    np.testing.assert_allclose(rotate_back(key, rotated, size), values, atol=1e-5 * max(1.0, jnp.abs(values).max()))


def test_rotation_shortens_the_range_of_a_spike():
    rotated = rotate(jax.random.key(0), jnp.zeros(1024).at[3].set(1.0))
    assert float(rotated.max() - rotated.min()) < 0.1


def test_tensors_of_one_update_are_rounded_by_bits_of_their_own():
    same = [jnp.linspace(0, 1, 500), jnp.linspace(0, 1, 500)]
    first, second = compress_update(make_compressor("uniform2"), jax.random.key(0), same)
    assert np.any(first.codes != second.codes)


def test_rounding_bits_are_even_and_independent():
    """A chi-square test of 64 x 64 cells over pairs of bits; false alarm 1e-6 for each of 4 kinds of pairs.

    The keys are those that the clients of a cohort have: neighbouring numbers folded into the round's key.
    """

    def rounded_up(round_index, client, size):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), round_index), client)
        return np.asarray(_uniform(key, size))

    many = np.stack([rounded_up(0, client, 1 << 14) for client in range(32)])
    pairs = {
        "values": (many[:, : 1 << 13], many[:, 1 << 13 :]),
        "neighbours": (many[:, :-1:2], many[:, 1::2]),
        "clients": (many[::2], many[1::2]),
        "rounds and clients": (many[:16], np.stack([rounded_up(1, client, 1 << 14) for client in range(16)])),
    }
    for name, (first, second) in pairs.items():
        cells, _, _ = np.histogram2d(first.ravel(), second.ravel(), bins=64, range=[[0, 1], [0, 1]])
        assert 5e-7 < scipy.stats.chisquare(cells.ravel()).pvalue < 1 - 5e-7, name


def test_no_two_schemes_are_the_same_and_each_is_found_by_what_the_wire_calls_it():
    for compressor in EVERY.values():
        assert compressor_of(compressor.scheme) is compressor
    kinds = {(compressor.scheme.number, type(compressor)) for compressor in EVERY.values()}
    assert len({number for number, _ in kinds}) == len(kinds)
    for strange in (Scheme(0, 1, {}), Scheme(1, 2, {}), Scheme(2, 1, {"bits": 1 << 40, "rotation": 0})):
        with pytest.raises(ConfigurationError, match="no compression of scheme"):
            compressor_of(strange)


def test_a_compression_is_named_or_follows_from_the_bits():
    assert TrainingSettings() == TrainingSettings(upload_bits=8)
    for bits, name in COMPRESSION_OF_BITS.items():
        assert TrainingSettings(upload_bits=bits).compressor() == COMPRESSIONS[name]
        assert TrainingSettings(upload_bits=bits, compression=name).compressor() == COMPRESSIONS[name]
    assert TrainingSettings(compression="uniform4", upload_rotation=True).compressor() == ROTATED["uniform4"]
    for name in COMPRESSIONS:
        assert TrainingSettings(compression=name).compressor() == COMPRESSIONS[name]
        assert name in get_args(CompressionName)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda: make_compressor("uniform3"), "compression is 'uniform3', but must be one of uniform2, "),
        (lambda: make_compressor("float32", True), "upload_rotation is on, but float32 does not rotate"),
        (
            lambda: TrainingSettings(compression="float32", upload_bits=8),
            "upload_bits is 8, which is the compression uniform8, but",
        ),
        (lambda: TrainingSettings(compression="zip"), "compression is 'zip', but must be one of"),
        (lambda: TrainingSettings(upload_bits=5), "upload_bits is 5, but must be one of 2, 4, 8, 16, 32"),
    ],
)
def test_impossible_choices_are_refused(choose, message):
    with pytest.raises(ConfigurationError, match=message):
        choose()
