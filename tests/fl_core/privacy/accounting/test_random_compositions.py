"""What holds for every composition, tried on random ones: releases with much and little noise, frequent and rare."""

import math
from dataclasses import replace

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting import composition, merged_events
from fedlm.fl_core.privacy.accounting.composition import AccountingError, delta_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.losses import loss_profiles
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import DIRECTIONS
from fedlm.fl_core.privacy.accounting.losses.loss_sums import lower_epsilon, upper_epsilon
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent
from tests.fl_core.privacy.accounting.test_loss_sums import laplace_delta
from tests.support.properties import costly


def powers(low, high):
    return st.floats(low, high).map(lambda power: 10**power)


def counts(high):
    return powers(0, high).map(round)


COUNTS = st.one_of(st.just(1), counts(2), counts(4))
SAMPLED = st.builds(
    GaussianEvent,
    st.one_of(powers(-1.65, 0), powers(-0.5, 1), powers(0, 2.5)),
    COUNTS,
    st.one_of(powers(-14, -6), powers(-6, -2), powers(-2, -0.01)),
)
STATED = st.builds(StatedEvent, powers(-2, 1), st.one_of(st.just(0.0), powers(-16, -7)), st.sampled_from([1, 1, 2, 5]))


@st.composite
def truncated(draw):
    event, population = draw(SAMPLED), draw(counts(7).filter(lambda count: count >= 2))
    most = max(1, int(population * event.sampling_probability * draw(st.floats(0.8, 2.0))))
    return replace(event, population=population, most=most)


EVENTS = st.lists(st.one_of(SAMPLED, SAMPLED, SAMPLED, truncated(), STATED), min_size=1, max_size=3)
DELTAS = powers(-14.5, -2)


def losses_of(events, direction):
    return [(event.count, event.loss(direction)) for event in events]


def more_of(event):
    """A release that gives away more, in each way that there is."""
    yield replace(event, count=event.count + 1)
    if isinstance(event, StatedEvent):
        yield replace(event, epsilon=event.epsilon * 1.3)
        yield replace(event, delta=event.delta * 2 + 1e-16)
        return
    yield replace(event, noise_multiplier=event.noise_multiplier / 1.3)
    if event.most is None:
        yield replace(event, sampling_probability=min(1.0, event.sampling_probability * 1.3))


def check_composition(events, delta, draw):
    place = draw(st.integers(0, len(events) - 1))
    more = draw(st.sampled_from(list(more_of(events[place]))))
    with_more, factor = [*events[:place], more, *events[place + 1 :]], draw(st.sampled_from([1.0, 1.5]))
    for direction in DIRECTIONS:
        losses = losses_of(events, direction)
        upper, lower = upper_epsilon(losses, delta), lower_epsilon(losses, delta)
        assert lower <= upper
        for event in events if len(events) > 1 else ():
            assert lower_epsilon(losses_of([event], direction), delta) <= upper
        assert lower <= upper_epsilon(losses_of(with_more, direction), delta / factor)


@pytest.mark.timeout(1800)
@costly(20)
@given(EVENTS, DELTAS, st.data())
def test_no_bound_contradicts_another(events, delta, data):
    check_composition(events, delta, data.draw)


@pytest.mark.thorough
@pytest.mark.timeout(12 * 3600)
@settings(max_examples=10_000, derandomize=True)
@given(EVENTS, DELTAS, st.data())
def test_no_bound_contradicts_another_in_thousands(events, delta, data):
    """On coarse grids, whose bounds hold too and take a quarter of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_profiles, "_MOST_POINTS", 1 << 13)
        check_composition(events, delta, data.draw)


def test_bounds_hold_on_a_grid_that_is_far_too_coarse(monkeypatch):
    """Between two of its points a tilted error grows beyond what floats hold."""
    monkeypatch.setattr(loss_profiles, "_MOST_POINTS", 1 << 13)
    losses = losses_of([StatedEvent(10.0, count=2)], "remove")
    assert 19.9 < lower_epsilon(losses, 1e-9) <= 20 <= upper_epsilon(losses, 1e-9) < 20.1


@pytest.mark.long
def test_masses_below_a_jump_may_all_be_none(monkeypatch):
    """Where the grid is coarse, all ordinary losses of a release may have masses that no float expresses."""
    monkeypatch.setattr(loss_profiles, "_MOST_POINTS", 1 << 13)
    sampled = GaussianEvent(0.026512502672068623, 1, 0.01169275320201444, population=93910, most=1647)
    for direction in DIRECTIONS:
        losses = losses_of([sampled, GaussianEvent(1.0, 1, 1e-14)], direction)
        assert lower_epsilon(losses, 8.926636185804978e-11) <= upper_epsilon(losses, 8.926636185804978e-11)


@pytest.mark.long
def test_masses_next_to_none_are_no_warning():
    """The quotient of a mass by a neighbour of 1e-322 is beyond what floats hold."""
    event = GaussianEvent(10**-1.578125, 1, 1e-6, population=10, most=1)
    for direction in DIRECTIONS:
        assert lower_epsilon(losses_of([event], direction), 1e-6) <= upper_epsilon(losses_of([event], direction), 1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("often", "rare", "delta"),
    [
        (GaussianEvent(0.79, 3721, 0.00205), GaussianEvent(0.043, 1, 4.32e-14), 7.2e-14),
        (GaussianEvent(0.98, 707, 0.0096), GaussianEvent(0.05, 1, 1.53e-10), 1.7e-10),
    ],
)
def test_a_rare_release_that_gives_everything_away_takes_its_probability_of_delta(often, rare, delta):
    """Its loss is in the hundreds where the person is in it, and as good as nothing elsewhere."""
    upper, lower = epsilon_bounds([often, rare], delta)
    left = delta - rare.sampling_probability

    def exact(epsilon):
        return laplace_delta(often.noise_multiplier, often.sampling_probability, often.count, epsilon, "remove")

    assert upper * 0.999 <= lower <= upper
    assert exact(upper) <= left <= exact(lower)
    assert lower > epsilon_bounds([often], delta).upper


@pytest.mark.long
def test_a_training_and_one_with_hardly_any_noise():
    """60 batches of one example of a million, and one such batch with so little noise that all of it is seen."""
    probability = 1 / 1_036_672
    often, rare = GaussianEvent(0.72, 60, probability), GaussianEvent(0.05, 1, probability)
    both, alone = epsilon_bounds([often, rare], 1e-6), epsilon_bounds([often], 1e-6 - probability)
    assert both.lower >= both.upper * 0.99
    # Where the person is not in the other one, its loss is that of not being in it.
    assert both.lower <= alone.upper - probability
    assert alone.lower - probability <= both.upper
    assert both.lower > 4 * epsilon_bounds([often], 1e-6).upper


@pytest.mark.long
def test_losses_of_one_release_do_not_hide_those_of_another():
    """A far loss that hardly happens once made the window so wide that all else lay between two points of its grid."""
    events = [
        GaussianEvent(2.6094295346466696, 120, 0.0007195709757742466),
        GaussianEvent(0.056995725060339966, 31, 2.4557703000261788e-11, 520548, 1),
        StatedEvent(0.016435760538654785, 2.994023297456254e-15),
    ]
    upper, lower = epsilon_bounds(events, 1.8928150810315125e-06)
    assert upper * 0.99 <= lower <= upper


def test_a_sum_that_is_as_good_as_certain():
    upper, lower = epsilon_bounds([StatedEvent(6.77, count=5), StatedEvent(1.85)], 6.4e-11)
    assert upper * 0.9999 <= lower <= upper
    assert upper == pytest.approx(5 * 6.77 + 1.85, rel=1e-4)


def test_sums_that_are_hardly_ever_smaller_than_the_largest():
    """Chernoff's inequality is an equation there, so that rounding decides."""
    event = StatedEvent(30.0, 0.0, 3000)
    below = 1e-5  # the largest sum
    exact = math.exp(-3000 * math.log1p(math.exp(-30))) * -math.expm1(-below)
    assert exact <= delta_above([event], 90_000 - below) <= exact * 1.001


@pytest.mark.parametrize(("epsilon", "exact"), [(-1.0, 0.6321967862), (-0.1, 0.1118923749)])
def test_delta_below_epsilon_0(epsilon, exact):
    """What P has beyond Q in one direction, Q has in the other."""
    assert delta_above([GaussianEvent(1.0, 1, 0.1)], epsilon) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(
    ("noise", "epsilon"), [(5.01e5, 1.3e-5), (8e6, 1e-6), (1e8, 3e-8), (120.0, 0.02), (99.0, 0.05), (101.0, 0.0)]
)
def test_delta_of_much_noise_with_fifty_digits(noise, epsilon):
    with mpmath.workdps(50):
        shift, at = 1 / mpmath.mpf(noise), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(shift / 2 - at / shift) - mpmath.exp(at) * mpmath.ncdf(-shift / 2 - at / shift)
        assert 0 <= delta_above([GaussianEvent(noise)], epsilon) / exact - 1 <= 1e-8


@pytest.mark.long
@pytest.mark.parametrize(
    ("events", "epsilon", "exact"),
    [
        ([], 1.0, 0.0),
        ([GaussianEvent(1.0, 10, 0.0)], 1.0, 0.0),
        ([GaussianEvent(0.03, 1, 0.467)], 100.0, 0.467),
        ([GaussianEvent(0.03, 10, 0.01)], 0.0, 1 - 0.99**10),
        ([StatedEvent(20.0)], 0.0, math.tanh(10.0)),
        ([StatedEvent(13.0), GaussianEvent(1.0, 10, 0.01)], 0.5, 1 / (1 + math.exp(-13))),
        ([StatedEvent(1000.0), GaussianEvent(1.0, 10, 0.01)], 500.0, 1.0),
    ],
)
def test_delta_where_hardly_anything_is_between_nothing_and_everything(events, epsilon, exact):
    assert exact * (1 - 1e-5) <= delta_above(events, epsilon) <= exact * (1 + 1e-5)


def test_delta_that_is_the_probability_of_giving_everything_away():
    """A float more or less of it decides whether epsilon is infinite, so that no lower bound may be."""
    event = StatedEvent(0.2, 5.462735454767605e-06, 3)
    upper, lower = epsilon_bounds([event], -math.expm1(3 * math.log1p(-event.delta)))
    assert lower <= 0.6 + 1e-9
    assert upper > 0.6


@pytest.mark.parametrize("noise", [1e-8, 1e-7, 9.99e-7, 1.01e-6, 1e-3])
def test_epsilon_of_hardly_any_noise(noise):
    upper, lower = epsilon_bounds([GaussianEvent(noise, 4)], 1e-6)
    with mpmath.workdps(50):
        shift, at = 2 / mpmath.mpf(noise), mpmath.mpf(upper)
        exact = mpmath.ncdf(shift / 2 - at / shift) - mpmath.exp(at) * mpmath.ncdf(-shift / 2 - at / shift)
    assert 0.9e-6 <= exact <= 1e-6 * (1 + 1e-6)
    assert lower <= upper


@pytest.mark.parametrize(("noise", "gap"), [(0.5, 1e-6), (3.0, 1e-9), (1e4, 1e-12), (1e8, 1e-12), (13245.0, -1e-12)])
def test_epsilon_of_one_gaussian_where_delta_is_next_to_the_total_variation(noise, gap):
    """Epsilon is next to 0 there, and the rounding of delta is far more of it than elsewhere."""
    with mpmath.workdps(50):
        shift = 1 / mpmath.mpf(noise)

        def exact(at):
            at = mpmath.mpf(at)
            return mpmath.ncdf(shift / 2 - at / shift) - mpmath.exp(at) * mpmath.ncdf(-shift / 2 - at / shift)

        delta = float(exact(0) * (1 - mpmath.mpf(gap)))
        upper, lower = epsilon_bounds([GaussianEvent(noise)], delta)
        assert exact(upper) <= delta
        assert lower == 0 or exact(lower) >= delta
    assert upper < 1e-5


def test_the_noise_of_many_different_releases_is_added_up_exactly():
    events = [GaussianEvent(1 + number / 7) for number in range(20_000)]
    with mpmath.workdps(40):
        exact = sum(mpmath.mpf(event.noise_multiplier) ** -2 for event in events) ** -0.5
        (merged,) = merged_events.merged(events)
        assert abs(merged.noise_multiplier / exact - 1) <= 4 * 2.0**-53


@pytest.mark.parametrize("event", [GaussianEvent(1e-9), GaussianEvent(1e11), StatedEvent(1e5)])
def test_numbers_beyond_what_floats_can_tell_apart_are_refused(event):
    with pytest.raises(ConfigurationError, match="but must lie between"):
        epsilon_bounds([event], 1e-6)


def test_bounds_that_contradict_each_other_are_a_defect(monkeypatch):
    events = [GaussianEvent(1.0, 10, 0.0123), GaussianEvent(3.0, 10, 0.0123)]
    composition._epsilon_bounds.cache_clear()
    composition._epsilon_above.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(composition, "lower_epsilon", lambda *given, **named: math.inf)
        with pytest.raises(AccountingError, match=r"at most .* and at least inf"):
            epsilon_bounds(events, 1e-6)
    right = composition._epsilon_bounds

    def one_too_little(events, delta):
        found = right(events, delta)
        return found if len(events) == 1 else found._replace(upper=found.upper / 10, lower=found.lower / 10)

    with monkeypatch.context() as patch:
        patch.setattr(composition, "_epsilon_bounds", one_too_little)
        with pytest.raises(AccountingError, match=r"of GaussianEvent.* alone is at least"):
            epsilon_bounds(events, 1e-6)
    assert epsilon_bounds(events, 1e-6).upper > epsilon_bounds(events[:1], 1e-6).upper
