"""Bounds on epsilon, held to closed forms, to sums that others compute, and to an inverse Laplace transform."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from flint import arb
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, ndtr

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting import joint_convexity
from fedlm.fl_core.privacy.accounting.composition import delta_above, epsilon_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.losses.loss_grids import MASS_ERROR, cells_of, fitting_offset
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import (
    DIRECTIONS,
    MixedLoss,
    ReplacedGaussianPair,
    SampledGaussianPair,
    sampled_gaussian,
)
from fedlm.fl_core.privacy.accounting.losses.loss_profiles import computed
from fedlm.fl_core.privacy.accounting.losses.loss_sums import _solve, lower_epsilon, upper_delta, upper_epsilon
from fedlm.fl_core.privacy.accounting.losses.loss_windows import window_of_jumps
from fedlm.fl_core.privacy.accounting.losses.quick_bounds import _masses_and_losses
from fedlm.fl_core.privacy.accounting.release_events import ExamplesEvent, GaussianEvent, StatedEvent
from fedlm.fl_core.privacy.accounting.sampled_examples import BinomialMixturePair
from fedlm.fl_core.privacy.settings import PrivacySettings
from tests.support.ball_pairs import release_of
from tests.support.properties import costly


def delta_of_few(noise, probability, count, epsilon, direction):
    """Compute delta of one to three releases, `delta_(T + 1)(epsilon) = E[delta_T(epsilon - L)]`, by trapezoidal sums.

    With P = (1 - q) N(0, 1) + q N(m, 1) and Q = N(0, 1) (`remove`; the other way about for `add`), one release has
    `delta_1(epsilon) = P(L > epsilon) - exp(epsilon) Q(L > epsilon)`, by the normal distribution function. Of three
    releases, half the step changes less than a millionth.
    """
    shift, q = 1 / noise, probability
    u = np.linspace(-12, 12 + 6 * shift, 3000 if count == 3 else 300_000)
    loss = np.log1p(q * np.expm1(shift * u - shift**2 / 2))
    weight = np.exp(-np.square(u) / 2) * (u[1] - u[0]) / math.sqrt(2 * math.pi)
    weight, loss = (weight * np.exp(loss), loss) if direction == "remove" else (weight, -loss)

    def of_one(epsilon):
        odds = (np.expm1(epsilon if direction == "remove" else -epsilon) + q) / q
        at = np.log(np.where(odds > 0, odds, 1.0)) / shift + shift / 2
        if direction == "remove":
            inside = (1 - q) * ndtr(-at) + q * ndtr(shift - at) - np.exp(epsilon) * ndtr(-at)
            return np.where(odds > 0, inside, -np.expm1(epsilon))
        return np.where(odds > 0, ndtr(at) - np.exp(epsilon) * ((1 - q) * ndtr(at) + q * ndtr(at - shift)), 0.0)

    def of(count, epsilon):
        return of_one(epsilon) if count == 1 else np.array([weight @ of(count - 1, one - loss) for one in epsilon])

    return float(of(count, np.array([epsilon]))[0])


@pytest.mark.parametrize(
    ("noise", "probability", "count", "epsilon", "direction"),
    [
        (1.0, 0.1, 1, 1.0, "remove"),
        (1.0, 0.1, 1, 0.0632, "add"),
        (0.5, 0.01, 1, 0.00603, "add"),
        (1.0, 0.1, 2, 3.0, "remove"),
        (0.7, 0.001, 2, 4.0, "remove"),
        (0.7, 0.001, 2, 0.0012, "add"),
        (2.0, 0.5, 3, 2.0, "remove"),
        (1.0, 0.02, 3, 3.0, "remove"),
        # The loss of `add` has a bound, which is not far above.
        (1.0, 0.02, 3, 0.0364, "add"),
    ],
)
def test_sums_of_few_releases_lie_between_the_bounds(noise, probability, count, epsilon, direction):
    losses = [(count, sampled_gaussian(noise, probability, direction))]
    delta = delta_of_few(noise, probability, count, epsilon, direction)
    digits = 1e-6
    upper, lower = upper_epsilon(losses, delta), lower_epsilon(losses, delta)
    assert epsilon * (1 - digits) <= upper <= epsilon * 1.01
    assert epsilon * 0.99 <= lower <= epsilon * (1 + digits)
    assert delta * (1 - digits) <= upper_delta(losses, epsilon) <= delta * 1.05
    # Sums with a jump are enough where the others are bounded.
    window = window_of_jumps(losses, epsilon, delta)
    if window is None:
        return  # sums of small losses reach epsilon too
    upper, lower = (_solve(computed(losses, window, 1, below), delta) for below in (False, True))
    assert epsilon * (1 - digits) <= upper <= epsilon * 1.005
    assert epsilon * 0.995 <= lower <= epsilon * (1 + digits)


def laplace_delta(noise, probability, count, epsilon, direction):
    """`(2 pi i)^-1` times the integral of `E[exp(zS)] exp(-z epsilon) / (z (z + 1))` along a line, by its own nodes."""
    shift = 1 / noise
    u = np.arange(-14, 14 + 12 * shift, 0.125 * min(1, noise))
    loss = np.log1p(probability * np.expm1(shift * u - shift**2 / 2))
    log_density = -(u**2) / 2 + math.log((u[1] - u[0]) / math.sqrt(2 * math.pi))
    loss, log_density = (loss, log_density + loss) if direction == "remove" else (-loss, log_density)

    def log_moment(z):
        return count * logsumexp(log_density + np.multiply.outer(z, loss), axis=-1)

    tilts = np.geomspace(0.1, 300, 400)
    tilt = tilts[np.argmin(log_moment(tilts).real - tilts * epsilon)]
    at, values = 0.0, []
    step = 0.02 * min(tilt, 1 / (1 + epsilon))
    while at < 4000:
        z = tilt + 1j * (at + step * (np.arange(2000) + 0.5))
        values.append(np.exp(log_moment(z) - z * epsilon) / (z * (z + 1)))
        at += 2000 * step
        if np.abs(values[-1]).max() < 1e-11 * np.abs(values[0]).max():
            break
    return float(np.sum(np.concatenate(values).real) * step / math.pi)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("noise", "probability", "count", "delta"),
    [
        pytest.param(0.6143481, 4.08e-5, 100_000, 1e-12, marks=pytest.mark.long),
        (1.0, 0.01, 1000, 1e-15),
        (5.0, 0.2, 2000, 1e-10),
    ],
)
def test_many_releases_agree_with_an_inverse_laplace_transform(noise, probability, count, delta, direction):
    """The first is where self-composition without tilting says 9.5, and the truth is 2.68."""
    losses = [(count, sampled_gaussian(noise, probability, direction))]
    upper, lower = upper_epsilon(losses, delta), lower_epsilon(losses, delta)
    assert upper * 0.995 <= lower <= upper
    assert laplace_delta(noise, probability, count, upper, direction) <= delta
    assert laplace_delta(noise, probability, count, lower, direction) >= delta


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
@pytest.mark.parametrize("deviation", [0.02, 0.5, 4.0])
def test_composed_gaussians_are_one(deviation, delta):
    """Their loss is composed on a grid here, and once with 40 digits."""
    with mpmath.workdps(40):
        shift = mpmath.mpf(deviation)

        def excess(epsilon):
            high = mpmath.ncdf(shift / 2 - epsilon / shift)
            return mpmath.log((high - mpmath.exp(epsilon) * mpmath.ncdf(-shift / 2 - epsilon / shift)) / delta)

        guess = epsilon_above([GaussianEvent(1 / deviation)], delta)
        expected = float(mpmath.findroot(excess, guess))
    assert guess == pytest.approx(expected, rel=1e-9)
    losses = [(400, sampled_gaussian(20 / deviation, 1.0, "remove"))]
    assert expected <= upper_epsilon(losses, delta) <= expected * 1.002
    assert expected * 0.998 <= lower_epsilon(losses, delta) <= expected


@pytest.mark.long
@costly(15)
@given(
    st.floats(-4, 0).map(lambda power: 10**power),
    st.floats(-0.5, 1.2).map(lambda power: 10**power),
    st.floats(0, 3.5).map(lambda power: round(10**power)),
    st.floats(-15, -2).map(lambda power: 10**power),
)
def test_bounds_are_close_and_follow_delta_rounds_and_noise(probability, noise, count, delta):
    def bounds(noise=noise, count=count, delta=delta):
        return epsilon_bounds([GaussianEvent(noise, count, probability)], delta)

    here = bounds()
    assert here.upper * 0.99 <= here.lower <= here.upper
    for less in (bounds(noise=noise * 1.03), bounds(count=max(1, int(count * 0.9))), bounds(delta=delta * 1.5)):
        assert less.lower <= here.upper
        assert less.upper <= here.upper * (1 + 1e-3)


@pytest.mark.parametrize(
    ("noise", "probability", "count", "delta"),
    [
        (104.7, 5.675e-7, 75, 3.21e-15),
        (185.7, 2.194e-6, 11, 1.15e-14),
        (1.0, 4.08e-5, 1, 1e-15),
        (0.7976, 3.835e-6, 82, 1.19e-14),
        (0.3943, 3.012e-7, 31, 3.11e-8),
        (0.4839, 2.264e-6, 2, 4.8e-7),
        pytest.param(0.6456, 3.018e-6, 257410, 1.09e-15, marks=pytest.mark.long),
        pytest.param(0.5014, 1.961e-7, 713, 1.92e-12, marks=pytest.mark.long),
        pytest.param(0.5129, 5.776e-6, 251, 3.1e-5, marks=pytest.mark.long),
    ],
)
def test_bounds_are_close_where_losses_are_tiny_and_where_one_of_them_decides(noise, probability, count, delta):
    """Tilts that depend on the size of losses are needed for the first, sums with a jump for the others."""
    upper, lower = epsilon_bounds([GaussianEvent(noise, count, probability)], delta)
    assert 0 < upper * 0.99 <= lower <= upper


@pytest.mark.long
@pytest.mark.parametrize(("noise", "probability", "count"), [(0.03, 0.01, 10), (0.021, 0.5, 100), (0.05, 1e-4, 1000)])
@pytest.mark.parametrize("delta", [1e-5, 1e-12])
def test_closed_forms_for_little_noise_contain_what_grids_give(noise, probability, count, delta):
    releases = [joint_convexity.Releases(count, probability, 1 / noise)]
    upper, lower = epsilon_bounds([GaussianEvent(noise, count, probability)], delta)
    least = joint_convexity.lower_epsilon(releases, delta)
    assert least <= upper <= joint_convexity.upper_epsilon(releases, delta) * 1.0001
    assert least >= 0.6 * lower


@pytest.mark.long
@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.0199])
@pytest.mark.parametrize("truncation", [(None, None), (10_000, 150)])
def test_extreme_noise_is_answered(noise, truncation):
    events = [GaussianEvent(noise, 1000, 0.01, *truncation), StatedEvent(0.5, 1e-9)]
    upper, lower = epsilon_bounds(events, 1e-6)
    assert 0 < lower <= upper < math.inf
    assert delta_above(events, upper) <= 1e-6 * (1 + 1e-9)


def test_nobody_is_in_a_sample_of_probability_0():
    assert epsilon_bounds([GaussianEvent(1.0, 10, 0.0)], 1e-6) == (0, 0)
    one = GaussianEvent(1.0, 10, 0.1)
    assert epsilon_above([one, GaussianEvent(0.1, 10, 0.0)], 1e-6) == epsilon_above([one], 1e-6)


@pytest.mark.parametrize("delta", [0.0, 9e-16, 1.0, 2.0, math.nan])
def test_deltas_out_of_range_are_refused_everywhere(delta):
    events = [GaussianEvent(1.0, 10, 0.1)]
    for ask in (epsilon_bounds, epsilon_above):
        with pytest.raises(ConfigurationError, match=r"delta is .*at least 1e-15 and below 1"):
            ask(events, delta)
    with pytest.raises(ConfigurationError, match="delta is"):
        PrivacySettings(privacy="gaussian", delta=delta).check_privacy("poisson", 1.0, "uniform", states_epsilon=False)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(0.0),
        GaussianEvent(math.nan),
        GaussianEvent(math.inf),
        GaussianEvent(1.0, 3, -0.1),
        GaussianEvent(1.0, 3, 1.1),
        GaussianEvent(0.03, 3, 1e-300),
        GaussianEvent(1.0, -1),
        StatedEvent(-1.0),
        StatedEvent(1.0, 1.0),
    ],
)
def test_events_that_make_no_sense_are_refused(event):
    with pytest.raises(ConfigurationError, match=r"(is|of an event is) \S+, but must"):
        epsilon_bounds([event], 1e-6)


def test_directions_differ_and_the_worse_counts():
    event = GaussianEvent(0.8, 50, 0.02)
    remove, add = ([(50, event.loss(direction))] for direction in DIRECTIONS)
    assert upper_epsilon(add, 1e-6) < lower_epsilon(remove, 1e-6) <= epsilon_bounds([event], 1e-6).upper


@pytest.mark.long
@pytest.mark.parametrize(("noise", "probability"), [(1.0, 0.1), (0.3, 0.01), (20.0, 0.5), (2.7, 1e-4)])
def test_epsilon_is_0_only_where_delta_is_above_the_total_variation(noise, probability):
    variation = probability * float(2 * ndtr(0.5 / noise) - 1)
    assert epsilon_bounds([GaussianEvent(noise, 1, probability)], variation * 0.9995).upper > 0
    assert epsilon_bounds([GaussianEvent(noise, 1, probability)], variation * (1 + 1e-9)) == (0, 0)


@pytest.mark.parametrize("examples", [2, 9])
def test_epsilon_is_0_where_delta_is_above_a_total_variation_that_is_not_known_exactly(examples):
    event = ExamplesEvent(2.0, 1, 0.1, examples)
    variation = float(release_of(event, "remove").delta(arb(0)))
    assert epsilon_bounds([event], variation * 1.002) == (0, 0)
    assert epsilon_bounds([event], variation * 0.998).lower > 0


def test_delta_and_epsilon_undo_each_other():
    events = [GaussianEvent(1.0, 300, 0.03), GaussianEvent(4.0), StatedEvent(0.2, 1e-8)]
    for delta in (1e-4, 1e-7):
        assert delta_above(events, epsilon_above(events, delta)) == pytest.approx(delta, rel=1e-2)
    assert math.isinf(epsilon_above(events, 1e-8))


def test_stated_events_compose_as_randomised_response():
    """Of n releases k say the truth: a binomial distribution (Kairouz et al. 2015)."""
    epsilon, delta, count = 0.3, 1e-9, 3
    truth = np.arange(count + 1)
    log_choose = np.array([math.log(math.comb(count, k)) for k in truth])
    log_truth, log_lie = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    mass = np.exp(log_choose + truth * log_truth + (count - truth) * log_lie)
    loss = epsilon * (2 * truth - count)
    upper, lower = epsilon_bounds([StatedEvent(epsilon, delta, count)], 1e-2)

    def exact(at):
        finite = float(np.sum(mass * np.maximum(-np.expm1(at - loss), 0)))
        return 1 - (1 - delta) ** count * (1 - finite)

    assert exact(upper) <= 1e-2 <= exact(lower)
    assert lower >= upper * 0.99


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_masses_on_the_grid(direction):
    """Each interval's, with 40 digits; and those of P and Q together stay what they are, or grow for nobody."""
    loss, spacing = sampled_gaussian(0.7, 0.01, direction), 0.003
    ((_, pair),) = loss.pairs
    cells = cells_of(loss, spacing, fitting_offset(loss, spacing), tail=1e-18, most=1 << 20)
    edges = pair.outcome(cells.offset + spacing * (cells.first + np.arange(len(cells.mass) + 1)))
    with mpmath.workdps(40):
        for place in (1, 2, 3, 10, 100, len(cells.mass) // 2, len(cells.mass) - 3):
            low, high = (mpmath.mpf(float(edge)) for edge in edges[place : place + 2])
            exact = mpmath.ncdf(high) - mpmath.ncdf(low)
            if direction == "remove":
                shifted = mpmath.ncdf(high - pair.shift) - mpmath.ncdf(low - pair.shift)
                exact = (1 - mpmath.mpf(pair.probability)) * exact + mpmath.mpf(pair.probability) * shifted
            # The edges are outcomes in float64, whose rounding is not the mass's.
            assert abs(cells.mass[place] - exact) <= exact * (MASS_ERROR + 1e-15 / float(high - low) * 4)
    for grid, sign in ((cells.from_above(), 1), (cells.from_below(), -1)):
        losses = grid.offset + spacing * (grid.first + np.arange(len(grid.masses)))
        of_other = float(np.sum(grid.masses * np.exp(-losses)))
        assert sign * (1 - of_other) >= -1e-9
        assert of_other == pytest.approx(1, abs=1e-5)
        assert np.sum(grid.masses) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    "pair",
    [
        *(SampledGaussianPair(50.0, 0.01, direction) for direction in DIRECTIONS),
        ReplacedGaussianPair(100.0, 0.3),
        BinomialMixturePair(2.5, 0.1, 20, "remove"),
    ],
)
def test_weights_at_nodes_add_up_to_1(pair):
    """As closely as quick bounds count on for each of very many releases."""
    log_mass, *_ = _masses_and_losses(MixedLoss(((1.0, pair),)), 1e-46)
    assert math.fsum(np.exp(log_mass)) == pytest.approx(1, abs=2e-13)


def test_a_pair_may_have_hardly_a_loss_below_a_cap():
    """Only where it is rare beside others, as rounds are that are not cut."""
    loss = replace(sampled_gaussian(0.03, 0.5, "add"), cap=0.3)
    cells = cells_of(loss, 0.01, 0.0, tail=1e-12, most=1 << 10)
    assert 0 < cells.mass.sum() < 1e-50
    assert loss.above(1e-12)[0] == pytest.approx(1)


@pytest.mark.parametrize(
    "loss", [MixedLoss(atoms=((800.0, 0.5), (0.0, 0.5)), cap=100.0), sampled_gaussian(0.02, 0.01, "remove")]
)
def test_masses_that_no_float_expresses_are_not_none(loss):
    """From below, none would say that a release gives everything away."""
    own, other = loss.above(1e-40)
    assert own > 0
    assert 0 < other < 1e-290


@pytest.mark.parametrize(("shift", "probability"), [(0.4, 0.01), (3.0, 0.2), (1.0, 1.0)])
def test_a_replaced_pair_is_that_of_two_mixtures(shift, probability):
    pair = ReplacedGaussianPair(shift, probability)
    loss = np.linspace(-4, 4, 9)
    u = pair.outcome(loss)
    np.testing.assert_allclose(pair.loss(u), loss, atol=1e-9)
    epsilon = shift / 5
    at = float(pair.outcome(np.array([epsilon]))[0])
    one = (1 - probability) * ndtr(-at) + probability * ndtr(shift - at)
    other = (1 - probability) * ndtr(-at) + probability * ndtr(-shift - at)
    assert pair.above(at) == pytest.approx((one, other), rel=1e-12)
    losses, exact = [(1, MixedLoss(((1.0, pair),)))], float(one - math.exp(epsilon) * other)
    assert epsilon * 0.99 <= lower_epsilon(losses, exact) <= epsilon <= upper_epsilon(losses, exact) <= epsilon * 1.01
