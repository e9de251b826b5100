"""Monte Carlo bounds of bins against a convolution, closed forms and each other; seeds are fixed."""

import math

import numpy as np
import pytest
import scipy

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import delta_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_delta, gaussian_epsilon_above
from fedlm.fl_core.privacy.accounting.monte_carlo import balls_in_bins, epsilon_ladder
from fedlm.fl_core.privacy.accounting.monte_carlo.balls_in_bins import BinnedEvent, Question, atoms_of
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent
from tests.support.ball_mixtures import delta_of_two


def below(shift, bins, factor, points):
    """The mean of (factor - W)+ by convolution on a grid that keeps means."""
    edges = np.linspace(0, bins * factor, points + 1)
    with np.errstate(divide="ignore"):
        x = (np.log(edges) + shift**2 / 2) / shift
    mass, mean = np.diff(scipy.special.ndtr(x)), np.diff(scipy.special.ndtr(x - shift))
    upper = (mean - edges[:-1] * mass) / np.diff(edges)
    one = np.append(mass - upper, 0.0) + np.append(0.0, upper)
    total = one
    for _ in range(bins - 1):
        total = scipy.signal.fftconvolve(total, one)[: points + 1]
    return float(total @ (factor - edges / bins))


def exact_delta(shift, bins, epsilon, points=1 << 14):
    factor = math.exp(epsilon)
    return max(1 - factor + below(shift, bins, factor, points), factor * below(shift, bins, 1 / factor, points))


@pytest.mark.parametrize(
    ("noise", "count", "bins", "delta"),
    [
        (1.0, 1, 2, 1e-5),
        pytest.param(0.7, 1, 10, 1e-6, marks=pytest.mark.long),
        pytest.param(2.0, 10, 30, 1e-7, marks=pytest.mark.long),
        pytest.param(1.0, 1, 100, 1e-7, marks=pytest.mark.long),
        pytest.param(3.0, 1, 20, 1e-5, marks=pytest.mark.long),
    ],
)
def test_epsilon_is_no_lower_than_that_of_a_convolution_and_close(noise, count, bins, delta):
    shift, found = math.sqrt(count) / noise, BinnedEvent(noise, count, bins).epsilon_above(delta)
    assert exact_delta(shift, bins, found) <= delta < exact_delta(shift, bins, found / 1.02)


def test_one_bin_is_the_gaussian_mechanism_and_two_are_held_to_ball_arithmetic():
    assert BinnedEvent(2.0, 4, 1).epsilon_above(1e-6) == gaussian_epsilon_above(1.0, 1e-6)
    found = BinnedEvent(1.0, 1, 2).epsilon_above(1e-3)
    assert all(delta_of_two((0.0, 0.5, 0.5), 1.0, 0.0, found, remove=remove) <= 1e-3 for remove in (True, False))
    assert delta_of_two((0.0, 0.5, 0.5), 1.0, 0.0, found / 1.02, remove=True) > 1e-3


def test_no_sum_is_above_all_ceilings_and_counts_nothing():
    """Of two bins, all sums can be added up; much of their mean is far above where the mean begins."""
    question = Question(atoms_of(2.5), 2, True, math.exp(0.01))
    masses, values = question.atoms.masses, question.atoms.values
    counts = masses * question.counts(values, values)
    parts, beside = balls_in_bins.parts_of(question, 1e-3 * float(counts.sum()))
    within = sum(counts[part.first : part.end][values[part.first : part.end] < part.ceiling].sum() for part in parts)
    assert within + beside >= counts.sum()


@pytest.mark.parametrize("remove", [True, False])
def test_the_parts_of_the_mean_sum_to_delta(remove):
    """An estimate is farther than six of its standard errors from what it estimates once in 1e8 tests or less."""
    shift, bins, epsilon = 1.0, 10, 0.5
    question = Question(atoms_of(shift), bins, remove, math.exp(epsilon))
    parts, beside = balls_in_bins.parts_of(question, 1e-6)
    rng = np.random.default_rng(5)
    found = [balls_in_bins.drawn(question, part, 20_000, rng) for part in parts]
    for part, counts in zip(parts, found, strict=True):
        assert counts.max() <= math.exp(part.log_most)
    mean, error = sum(map(np.mean, found)), math.sqrt(sum(np.var(counts) / 20_000 for counts in found))
    factor = math.exp(epsilon)
    above, under = below(shift, bins, factor, 1 << 14), below(shift, bins, 1 / factor, 1 << 14)
    exact = 1 - factor + above if remove else factor * under
    assert exact * 0.998 - 6 * error <= mean + beside <= exact * 1.01 + beside + 6 * error


@pytest.mark.long
def test_the_bound_covers_as_often_as_it_says():
    """With a thirtieth allowed to fail, more than a thirtieth and five deviations of 300 bounds fail less than once in
    1e6 tests; Bernstein's inequality gives more than it says."""
    shift, bins, epsilon = 1.0, 5, 1.0
    question = Question(atoms_of(shift), bins, True, math.exp(epsilon))
    (exact,) = {1 - question.factor + below(shift, bins, question.factor, 1 << 15)}
    parts, beside = balls_in_bins.parts_of(question, 1e-9)
    trials = math.log(2 * 30 * len(parts))
    failed = 0
    for trial in range(300):
        rng = np.random.default_rng(trial)
        drawn = [balls_in_bins.drawn(question, part, 400, rng) for part in parts]
        bound = sum(
            epsilon_ladder.upper_mean(counts, math.exp(part.log_most), 400, trials)
            for part, counts in zip(parts, drawn, strict=True)
        )
        failed += bound + beside < exact
    assert failed <= 10 + 5 * math.sqrt(10)


def test_delta_has_the_probability_that_the_bound_does_not_hold():
    bounds = epsilon_ladder.RUNGS * 2 * balls_in_bins._PARTS * epsilon_ladder.PLANS
    beta = bounds * 2 * math.exp(-epsilon_ladder.log_trials(1e-6, balls_in_bins._PARTS))
    assert beta == pytest.approx(epsilon_ladder.BETA_OF_DELTA * 1e-6)


@pytest.mark.long
def test_the_same_plan_has_the_same_epsilon_again_and_more_of_it_costs_more():
    event = BinnedEvent(1.0, 1, 10)
    first = event.epsilon_above(1e-4)
    balls_in_bins._epsilon_above.cache_clear()
    assert event.epsilon_above(1e-4) == first
    assert first < BinnedEvent(1.0, 2, 10).epsilon_above(1e-4) < gaussian_epsilon_above(0.5, 1e-4)


def test_what_the_draws_do_not_certify_is_stated_without_amplification():
    tiny = BinnedEvent(200.0, 1, 10)
    assert tiny.epsilon_above(1e-6) == gaussian_epsilon_above(200.0, 1e-6)
    assert BinnedEvent(1.0, 0, 10).epsilon_above(1e-6) == 0
    with pytest.raises(ConfigurationError, match="200000 bins, but must be between 1 and 100,000"):
        BinnedEvent(1.0, 1, 200_000).epsilon_above(1e-6)


@pytest.mark.long
def test_releases_by_bins_add_up_with_others():
    event = BinnedEvent(1.0, 1, 10)
    alone, both = epsilon_bounds([event], 1e-4), epsilon_bounds([event, StatedEvent(0.5), event], 1e-4)
    assert alone.lower == pytest.approx(epsilon_bounds([GaussianEvent(1.0, 1, 0.1)], 1e-4).lower)
    assert both.upper == pytest.approx(0.5 + 2 * event.epsilon_above(1e-4 / 3), rel=1e-3)
    assert alone.upper + 0.5 < both.upper
    assert delta_above([event], 1.0) == pytest.approx(gaussian_delta(1.0, 1.0))
