"""What clients do with their updates where each adds a share of the noise. Statistical tests have a false-alarm rate of
1e-6 each."""

import hashlib
import os

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from fedlm.fedlm_client.distributed_noise.bounds import integer_sensitivity, lattice_scale, rounded_norm_squared
from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fedlm_client.distributed_noise.noise_tables import TABLE_ERROR, noise_table
from fedlm.fedlm_client.distributed_noise.rotation import hadamard, rotated, rotated_back

KINDS = ("skellam", "discrete_gaussian")
LATTICE = Lattice(700, 0.5, 300.0, 18, "skellam", 900.0)


def weight(kind, value, variance):
    """The probability of a number but for a factor, by mpmath."""
    if kind == "skellam":
        return mpmath.besseli(value, mpmath.mpf(variance))
    return mpmath.exp(-(mpmath.mpf(value) ** 2) / (2 * mpmath.mpf(variance)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variance", [0.01, 0.25, 3.7, 120.5])
def test_tables_are_as_close_to_the_distribution_as_they_say(kind, variance):
    with mpmath.workdps(90):
        table = noise_table(kind, variance)
        reach, ends = table.reach, [0, *table.cumulative, 2**256]
        beyond = [weight(kind, value, variance) for value in range(reach + 40)]
        total = beyond[0] + 2 * mpmath.fsum(beyond[1:])
        off = [
            abs(mpmath.mpf(ends[value + reach + 1] - ends[value + reach]) / mpmath.mpf(2) ** 256 - exact / total)
            for value, exact in enumerate(beyond[: reach + 1])
        ]
        tails = 2 * mpmath.fsum(beyond[reach + 1 :]) / total
        assert mpmath.fsum(off) + tails < TABLE_ERROR / 2


@pytest.mark.parametrize(("kind", "variance"), [("skellam", 2.5), ("discrete_gaussian", 0.6)])
def test_draws_are_as_likely_as_their_distribution_says(kind, variance):
    drawn = noise_table(kind, variance).draw(200_000, os.urandom)
    values = np.arange(-20, 21)
    exact = np.array([float(weight(kind, abs(int(value)), variance)) for value in values])
    expected = 200_000 * exact / exact.sum()
    found = np.array([np.count_nonzero(drawn == value) for value in values])
    kept = expected > 10
    rest = [found[~kept].sum()], [expected[~kept].sum()]
    test = scipy.stats.chisquare(np.append(found[kept], rest[0]), np.append(expected[kept], rest[1]))
    assert test.pvalue > 1e-6


def test_a_draw_that_64_bits_leave_open_is_decided_by_the_rest():
    table = noise_table("skellam", 3.7)
    place = 40
    word, rest = divmod(table.cumulative[place], 2**192)
    for more, expected in ((rest - 1, place), (rest, place + 1)):
        parts = iter([word.to_bytes(8, "little"), more.to_bytes(24, "little")])
        assert table.draw(1, lambda count, parts=parts: next(parts)) == expected - table.reach


def test_a_rotation_is_the_hadamard_matrix_after_signs_and_is_undone():
    vector = np.random.default_rng(0).normal(size=64)
    np.testing.assert_allclose(hadamard(vector), scipy.linalg.hadamard(64) @ vector / 8, atol=1e-12)
    np.testing.assert_allclose(rotated_back(rotated(vector, b"seed"), b"seed"), vector, atol=1e-12)
    signs = np.round(hadamard(rotated(np.ones(64), b"seed")))
    bits = np.unpackbits(np.frombuffer(hashlib.shake_128(b"fedlm rotationseed").digest(8), np.uint8), bitorder="little")
    np.testing.assert_array_equal(signs, 1 - 2.0 * bits)


def test_no_clients_integers_are_longer_than_the_bound():
    random = np.random.default_rng(1)
    for lattice in (LATTICE, Lattice(1, 0.1, 1.0, 16, "skellam", 1.0), Lattice(1000, 1.0, 0.3, 16, "skellam", 1.0)):
        bound = rounded_norm_squared(lattice.scale * lattice.clip_norm, lattice.dimension)
        for size in (0.0, 1e-3, 1.0, 1e30):
            integers = lattice.rounded(size * random.normal(size=lattice.coordinates), b"", random)
            assert integers.dtype == np.int64
            assert np.dot(integers, integers) <= bound
            assert (
                np.abs(integers).sum() <= integer_sensitivity(lattice.scale * lattice.clip_norm, lattice.dimension).l1
            )
    worst = np.full(1024, 0.5)  # every coordinate is between two integers
    tight = Lattice(1024, 16.0, 1.0, 16, "skellam", 1.0)
    flat = rotated_back(worst, b"")
    tried = [tight.rounded(flat, b"", random) for _ in range(200)]
    assert max(np.dot(one, one) for one in tried) <= tight.most_squared


def test_rounding_is_right_in_the_mean():
    random, update = np.random.default_rng(2), np.linspace(-0.01, 0.01, 700)
    mean = sum(LATTICE.restored(LATTICE.rounded(update, b"", random), b"") for _ in range(400)) / 400
    # Each coordinate's error has a variance of a quarter of an integer at most.
    assert np.linalg.norm(mean - update) < 2 * np.sqrt(1024 / 4 / 400) / LATTICE.scale


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e200])
def test_an_update_that_is_not_finite_takes_no_part(wrong):
    update = np.zeros(700)
    update[3] = wrong
    assert LATTICE.rounded(update, b"", np.random.default_rng(0)) is None


def test_sums_modulo_a_power_of_two_are_those_of_integers_and_wrap_at_its_ends():
    random, updates = np.random.default_rng(3), np.random.default_rng(4).normal(size=(20, 700)) / 40
    whole, residues = 0, 0
    for update in updates:
        integers = LATTICE.rounded(update, b"r", random) + LATTICE.drawn_noise(os.urandom)
        whole, residues = whole + integers, LATTICE.reduced(residues + LATTICE.reduced(integers).astype(np.int64))
    np.testing.assert_array_equal(LATTICE.centred(residues), whole)
    half = 1 << 17
    edges = np.array([-half - 1, -half, 0, half - 1, half])
    np.testing.assert_array_equal(LATTICE.centred(LATTICE.reduced(edges)), [half - 1, -half, 0, half - 1, -half])


def test_the_mean_comes_back_with_noise_of_the_planned_size():
    lattice, clients = Lattice(3000, 1.0, 400.0, 20, "discrete_gaussian", 1600.0), 30
    random = np.random.default_rng(5)
    updates = random.normal(size=(clients, 3000)) / 100
    total = sum(lattice.rounded(one, b"", random) + lattice.drawn_noise(os.urandom) for one in updates)
    off = lattice.restored(lattice.centred(lattice.reduced(total)), b"") - updates.sum(axis=0)
    variance = clients * (1600 + 0.25) / 400**2
    assert scipy.stats.chi2.sf(off @ off / variance, 3000) > 1e-6
    assert scipy.stats.chi2.cdf(off @ off / (clients * 1600 / 400**2), 3000) > 1e-6


def test_golden_values_of_bounds_and_scale():
    # c s, D, beta: computed from the papers' formulas, apart from this code.
    assert integer_sensitivity(64, 1024) == pytest.approx((2130.3445730679346, 66.57326790837296), rel=1e-14)
    assert integer_sensitivity(64, 1024, 0).l2 == 96
    assert integer_sensitivity(2000, 2**20).l2 == pytest.approx(2065.104355716679, rel=1e-14)
    assert integer_sensitivity(10, 16) == pytest.approx((43.0813185, np.sqrt(116)), rel=1e-7)
    assert integer_sensitivity(10, 4, 1e-3).l2 == pytest.approx(11.911597041427662, rel=1e-14)
    assert integer_sensitivity(1e6, 2**20).l2 == pytest.approx(1000000.6313278007, rel=1e-14)
    scale = lattice_scale(16, 1000, 2**20, clip_norm=1.0, deviation=1000**-0.5)
    assert scale == pytest.approx(5860.882991897951, rel=1e-14)
    assert integer_sensitivity(scale, 2**20) == pytest.approx((6024955.846149036, 5883.745943504918), rel=1e-14)
    assert (
        1 + 2**10 / scale
        == pytest.approx(integer_sensitivity(scale, 2**20, 0).l2 / scale)
        == pytest.approx(1.1747, abs=1e-4)
    )


def test_a_rotation_by_blocks_would_need_more_bits():
    """Blocks of 1,024 spread a vector less, so that sums of 16 bits need a scale at which rounding costs much."""
    for bits, scale, larger in ((16, 262.0094, 2.1977), (20, 4192.158, 1.0076)):
        found = lattice_scale(bits, 1000, 2**10, clip_norm=1.0, deviation=1000**-0.5)
        assert found == pytest.approx(scale, rel=1e-6)
        assert integer_sensitivity(found, 2**20).l2 / found == pytest.approx(larger, abs=1e-4)
