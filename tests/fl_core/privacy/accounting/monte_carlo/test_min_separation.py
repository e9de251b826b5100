"""Monte Carlo bounds of sampling with a min-separation against enumeration and ball arithmetic; seeds are fixed."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import scipy
from flint import arb

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import delta_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_epsilon_above
from fedlm.fl_core.privacy.accounting.monte_carlo import epsilon_ladder, min_separation
from fedlm.fl_core.privacy.accounting.monte_carlo.joint_patterns import JointPatterns
from fedlm.fl_core.privacy.accounting.monte_carlo.min_separation import SeparatedEvent
from fedlm.fl_core.privacy.participation.sampling import MinSeparationParticipation
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from tests.support.ball_mixtures import delta_of_two

TWO = SeparatedEvent(0.8, 2, 0.4, 2, (0.8, 0.6))


def weights_of(event):
    """The probability of each pattern of steps, by trying all starts and draws."""
    p, apart, found = event.sampling_probability, event.separation, {}
    free = 1 / (1 + (apart - 1) * p)
    for pattern in itertools.product((0, 1), repeat=event.steps):
        total = 0.0
        for start in range(apart):
            weight, open_from = free if not start else free * p, start
            for step, takes in enumerate(pattern):
                if step < open_from:
                    weight *= not takes
                else:
                    weight *= p if takes else 1 - p
                    open_from = step + apart if takes else open_from
            total += weight
        found[pattern] = total
    return found


def exact_delta(event, epsilon, remove):
    """Enclose delta of two steps of which a person is in one at most."""
    weights = weights_of(event)
    correlation = math.prod(event.coefficients) / math.fsum(one**2 for one in event.coefficients)
    of_steps = [weights[pattern] for pattern in ((0, 0), (1, 0), (0, 1))]
    return delta_of_two(of_steps, event.noise_multiplier, correlation, epsilon, remove=remove)


@pytest.mark.parametrize(("steps", "apart"), [(7, 3), (3, 6)])
def test_one_pass_sums_over_all_patterns(steps, apart):
    event = SeparatedEvent(1.0, steps, 0.3, apart, (1.0,))
    logs = np.random.default_rng(0).normal(size=(steps, 4))
    weights = weights_of(event)
    by_hand = sum(weight * np.exp(np.array(pattern) @ logs) for pattern, weight in weights.items())
    np.testing.assert_allclose(np.exp(min_separation.log_sum(event, logs)), by_hand)
    assert sum(weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(("epsilon", "remove"), [(1.0, True), (0.3, False)])
def test_draws_of_each_tilt_estimate_delta_and_none_counts_more_than_most(epsilon, remove):
    """An estimate is farther than six of its standard errors from what it estimates once in 1e8 tests or less."""
    tilts = sorted(min_separation._tilts(TWO, remove=remove), key=lambda one: one.log_most(epsilon))
    for tilt in tilts[:9:4]:
        counts = min_separation.drawn(TWO, tilt, epsilon, np.random.default_rng(3), draws=20_000)
        assert counts.max() <= math.exp(tilt.log_most(epsilon)) * (1 + 1e-9)
        error = arb(6 * counts.std() / math.sqrt(len(counts)))
        assert abs(float(counts.mean()) - exact_delta(TWO, epsilon, remove)) < error + 2e-3


def test_patterns_together_have_their_weights():
    event = SeparatedEvent(1.0, 4, 0.4, 3, (1.0,))
    together = JointPatterns(4, 3, 0.4, 2, 0.2, (0.9, 0.5))
    weights = {}
    for one, other in itertools.product(weights_of(event).items(), repeat=2):
        pairs = sum(
            (0.9, 0.5)[abs(t - s)] for t in range(4) for s in range(4) if one[0][t] and other[0][s] and abs(t - s) < 2
        )
        counts = tuple(np.add(one[0], other[0]).tolist())
        weights[counts] = weights.get(counts, 0.0) + one[1] * other[1] * math.exp(0.2 * sum(counts) + pairs)
    assert together.log_sum() == pytest.approx(math.log(math.fsum(weights.values())))
    found = Counter(map(tuple, together.draw(50_000, np.random.default_rng(1)).T.astype(int).tolist()))
    often = [key for key, weight in weights.items() if weight > 1e-3 * sum(weights.values())]
    expected = np.array([weights[key] for key in often]) / sum(weights.values())
    seen = np.array([found[key] for key in often])
    rest = [50_000 - seen.sum()], [1 - expected.sum()]
    assert not {key for key in found if not weights.get(key)}
    chances = 50_000 * np.append(expected, rest[1])
    assert scipy.stats.chisquare(np.append(seen, rest[0]), chances).pvalue > 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("event", "within"), [(TWO, 1.03), (SeparatedEvent(1.5, 2, 0.1, 2, (0.8, 0.6)), 1.1)])
def test_epsilon_is_no_lower_than_that_of_an_integral_and_close(event, within):
    found = event.epsilon_above(1e-4)
    assert all(exact_delta(event, found, remove) <= 1e-4 for remove in (True, False))
    assert exact_delta(event, found / within, True) > 1e-4
    assert epsilon_bounds([event], 1e-4).lower < found < gaussian_epsilon_above(event.noise_multiplier, 1e-4)


@pytest.mark.long
def test_the_bound_covers_as_often_as_it_says():
    """With a twentieth allowed to fail, more than a twentieth and five deviations of 200 fail less than once in 1e5."""
    tilt = min_separation.tilt_of(TWO, 1.0, remove=True)
    most, exact = math.exp(tilt.log_most(1.0)), exact_delta(TWO, 1.0, True)
    failed = 0
    for seed in range(200):
        counts = min_separation.drawn(TWO, tilt, 1.0, np.random.default_rng(seed), draws=500)
        failed += not epsilon_ladder.upper_mean(counts, most, 500, math.log(2 * 20)) >= exact
    assert failed <= 10 + 5 * math.sqrt(10)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigurationError, match="at least the 2 bands"):
        SeparatedEvent(1.0, 2, 0.4, 1, (0.8, 0.6)).epsilon_above(1e-4)
    with pytest.raises(ConfigurationError, match="the separation is 1000000, but must be 10,000 at most"):
        SeparatedEvent(1.0, 2, 0.4, 10**6, (0.8, 0.6)).epsilon_above(1e-4)
    for coefficients in ((math.nan,), (0.0, 0.0), (math.inf,)):
        with pytest.raises(ConfigurationError, match="finite, and not all zero"):
            SeparatedEvent(1.0, 2, 0.4, 2, coefficients).epsilon_above(1e-4)
    with pytest.raises(ConfigurationError, match="at least the 2 bands"):
        delta_above([SeparatedEvent(1.0, 10, 1.0, 1, (0.8, 0.6))], 6.0)
    assert SeparatedEvent(1.0, 0, 0.4, 2, (0.8, 0.6)).epsilon_above(1e-4) == 0


def test_with_very_little_noise_the_bound_is_that_without_amplification():
    event = SeparatedEvent(0.03, 20, 0.4, 2, (0.8, 0.6))
    assert event.epsilon_above(1e-5) == gaussian_epsilon_above(0.03 / math.sqrt(10), 1e-5)


def test_whole_numbers_count_as_others():
    whole, other = (SeparatedEvent(2, 3, one, 2, (one, 0.5)) for one in (1, 1.0))
    assert whole.epsilon_above(1e-4) == other.epsilon_above(1e-4)


def test_coefficients_behind_the_last_round_change_nothing():
    """Their norm would make those that count look small."""
    participation, column = MinSeparationParticipation(1.0, 60), (1.0,) * 30
    plans = [
        PrivacyPlan("banded", 30, math.sqrt(30) / 2, participation, coefficients=column + more)
        for more in ((), (0.0,) * 29 + (1e6,))
    ]
    first, second = (account(plan, 1e-2).epsilon for plan in plans)
    assert first == second > 2.58, "which brute force over all patterns gives"
