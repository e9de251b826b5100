"""Divergences of sums with noise of every client: values computed apart from this code, and what sums of exact
probabilities come to."""

import math

import numpy as np
import pytest
import scipy.special

from fedlm.fl_core.privacy.accounting.composition import delta_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.distributed_noise import (
    ORDERS,
    RenyiEvent,
    discrete_gaussian_divergences,
    epsilon_of_divergences,
    epsilon_with_slack,
    from_gaussian,
    skellam_divergences,
)
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_epsilon_above
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent

L1, L2, SCALE = 6024955.846149036, 5883.745943504918, 5860.882991897951
# By shift and variance, divergences of orders 2 and 8 by Bessel functions.
SKELLAM = {
    (1, 1.0): (0.8748818516, 1.5590113954),
    (1, 4.0): (0.2457213156, 0.7369204573),
    (3, 9.0): (0.9543026801, 2.6022252727),
    (1, 100.0): (0.0099995919, 0.0399456838),
}
ONE = RenyiEvent(tuple(skellam_divergences(L1, L2, SCALE**2)))


def divergence(probabilities, shift, order):
    """Renyi's, of probabilities of -N ... N from those that lie `shift` further."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(probabilities)
        terms = order * logs[shift:] + (1 - order) * logs[: len(logs) - shift]
    return scipy.special.logsumexp(terms[np.isfinite(terms)]) / (order - 1)


def skellam(variance, reach):
    return scipy.special.ive(np.abs(np.arange(-reach, reach + 1)), variance)


def sum_of_discrete_gaussians(clients, deviation, reach=40):
    one = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * deviation**2))
    total = one = one / one.sum()
    for _ in range(clients - 1):
        total = np.convolve(total, one)
    return total


@pytest.mark.parametrize(
    ("order", "l1", "l2", "variance", "expected"),
    [
        (2, 1, 1, 1, 2.5),
        (8, 1, 1, 1, 5.5),
        (2, 1, 1, 4, 0.390625),
        (8, 1, 1, 4, 1.328125),
        (16, 1, 1, 4, 2.375),
        (2, 3, 3, 9, 1.1388888888888888),
        (2, 4, 2, 10, 0.49),
        (16, 100, 10, 50, 16.37),
        (64, 100, 10, 50, 65.33),
        (2, 1e6, 1e3, 1e6, 1.00000225),
        (2, 2048, 64, 16384, 0.25002288818359375),
        (2, L1, L2, SCALE**2, 1.0078171265546043),
        (8, L1, L2, SCALE**2, 4.0312685052450865),
        (32, L1, L2, SCALE**2, 16.125074020007016),
    ],
)
def test_golden_divergences_of_skellam_noise(order, l1, l2, variance, expected):
    assert skellam_divergences(l1, l2, variance, [order])[0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("sensitivity", "clients", "deviation", "dimension", "expected"),
    [
        ((2130.3445730679346, math.sqrt(4432)), 100, 2, 1024, (11.08, 44.32)),
        ((2130.3445730679346, math.sqrt(4432)), 100, 1, 1024, (44.55370301064397, 177.84093562783758)),
        ((2130.3445730679346, math.sqrt(4432)), 100, 0.5, 1024, (10111.26625702029, None)),
        ((4 * math.sqrt(26), math.sqrt(26)), 10, 0.5, 16, (47.925205107948315, 79.12520510794832)),
        ((1, 1), 2, 0.5, 1, (2.848049724711, 8.848049724711)),
    ],
)
def test_golden_divergences_of_discrete_gaussian_noise(sensitivity, clients, deviation, dimension, expected):
    found = discrete_gaussian_divergences(sensitivity, clients, deviation, dimension, orders=[2, 8])
    for value, known in zip(found, expected, strict=True):
        assert known is None or value == pytest.approx(known, rel=1e-12)


def test_golden_distances_of_sums_from_discrete_gaussian_noise():
    assert from_gaussian(2, 0.5) == pytest.approx(10 * math.exp(-(math.pi**2) / 4), rel=1e-14)
    known = {(10, 0.5): 2.34532531924677, (100, 1): 5.47788699060149e-4, (1000, 1): 5.731282577500227e-4}
    known |= {(1000, 1.5): 2.2702010065e-9, (6500, 2): 7.15718e-17}
    for (clients, deviation), expected in known.items():
        assert from_gaussian(clients, deviation) == pytest.approx(expected, rel=1e-9 if deviation < 2 else 1e-5)


@pytest.mark.parametrize(("shift", "variance"), SKELLAM)
def test_golden_divergences_of_sums_of_skellam_noise(shift, variance):
    probabilities = skellam(variance, 60 + round(20 * math.sqrt(variance)))
    for order, expected in zip([2, 8], SKELLAM[shift, variance], strict=True):
        assert divergence(probabilities, shift, order) == pytest.approx(expected, abs=2e-10)


def test_golden_divergences_of_sums_of_discrete_gaussian_noise():
    for (clients, order), expected in {(2, 2): 2.0, (2, 8): 8.236429853, (4, 2): 1.031884822}.items():
        found = divergence(sum_of_discrete_gaussians(clients, 0.5), 1, order)
        assert found == pytest.approx(expected, rel=1e-9 if expected != 2 else 1e-4)
    (bound,) = discrete_gaussian_divergences((1, 1), 4, 0.5, 1, orders=[2])
    assert bound == pytest.approx(2.467600395, rel=1e-9)


@pytest.mark.parametrize("variance", [0.3, 1.0, 4.0, 9.0, 100.0])
def test_sums_of_skellam_probabilities_stay_below_the_bound(variance):
    probabilities = skellam(variance, 60 + round(20 * math.sqrt(variance)))
    for shift in (1, 2, 3, 7):
        for order in (2, 3, 8, 20):
            assert divergence(probabilities, shift, order) <= skellam_divergences(shift, shift, variance, [order])[0]


@pytest.mark.parametrize("deviation", [0.5, 0.7, 1.0])
def test_sums_of_discrete_gaussian_probabilities_stay_below_the_bound(deviation):
    for clients in (1, 2, 4, 10):
        probabilities = sum_of_discrete_gaussians(clients, deviation)
        for shift in (1, 2, 3):
            bounds = discrete_gaussian_divergences((shift, shift), clients, deviation, 1, orders=[2, 4, 8])
            for order, bound in zip([2, 4, 8], bounds, strict=True):
                assert divergence(probabilities, shift, order) <= bound * (1 + 1e-9)


def test_golden_epsilons_of_participations_and_of_fewer_survivors():
    known = {1000: 5.245880039968215, 950: 5.405009064810748, 900: 5.581819092987594, 800: 5.9778031529661675}
    known[500] = 7.8674603892153945
    for survivors, expected in known.items():
        found = epsilon_of_divergences(skellam_divergences(L1, L2, SCALE**2 * survivors / 1000), 1e-6)
        assert found == pytest.approx(expected, rel=1e-12)
    assert epsilon_of_divergences(ORDERS / 2, 1e-6) == pytest.approx(5.222428660953289, rel=1e-12)
    four = RenyiEvent(ONE.divergences, count=4)
    assert epsilon_bounds([four], 1e-6).upper == pytest.approx(11.917927004302074, rel=1e-12)
    assert delta_above([four], 11.917927004302074) == pytest.approx(1e-6, rel=1e-6)


def test_other_releases_add_to_those_of_clients_and_the_error_of_tables_to_delta():
    alone = epsilon_bounds([ONE], 1e-6).upper
    # Gaussian noise has the divergence of the same order, exactly.
    gaussian = epsilon_bounds([ONE, GaussianEvent(1.0)], 1e-6).upper
    assert gaussian == pytest.approx(epsilon_of_divergences(np.array(ONE.divergences) + ORDERS / 2, 1e-6), rel=1e-12)
    assert gaussian > gaussian_epsilon_above(2**-0.5, 1e-6)
    stated = epsilon_bounds([ONE, StatedEvent(0.5, 1e-7)], 1e-6)
    assert alone + 0.5 < stated.upper < alone + 0.8
    assert stated.lower == pytest.approx(0.5, rel=0.01)
    assert epsilon_bounds([ONE, StatedEvent(0.0, 1e-6)], 1e-6).upper == math.inf
    assert epsilon_with_slack([RenyiEvent(ONE.divergences, 1e-40)], 0.0, 1e-6) == pytest.approx(alone, rel=1e-6)
    half = epsilon_of_divergences(np.array(ONE.divergences), 5e-7)
    assert epsilon_with_slack([RenyiEvent(ONE.divergences, 1e-9)], 0.0, 1e-6) == pytest.approx(half, rel=1e-9)
    assert epsilon_with_slack([RenyiEvent(ONE.divergences, 1e-7)], 0.0, 1e-6) == math.inf
