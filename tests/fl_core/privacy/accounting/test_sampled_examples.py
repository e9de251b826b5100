"""Users whose examples are sampled one by one: against the dp-accounting library, closed forms and drawn outcomes."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
from scipy.stats import binom

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.losses.loss_pairs import DIRECTIONS, MixedLoss
from fedlm.fl_core.privacy.accounting.losses.loss_sums import lower_epsilon, upper_delta, upper_epsilon
from fedlm.fl_core.privacy.accounting.release_events import ExamplesEvent, GaussianEvent, StatedEvent
from fedlm.fl_core.privacy.accounting.sampled_examples import BinomialMixturePair
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.promise.selection.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.promise.selection.private_selection import SelectionEvent


def bounds_of(noise, examples, probability, *, steps, delta):
    return epsilon_bounds([ExamplesEvent(noise, steps, probability, examples)], delta)


@pytest.mark.long
@pytest.mark.parametrize(
    ("noise", "examples", "probability", "steps", "delta"),
    [(2.0, 4, 0.05, 50, 1e-5), (1.0, 1, 0.02, 200, 1e-6), (3.0, 3, 0.5, 10, 1e-4)],
)
def test_bounds_lie_where_dp_accounting_has_its_own(noise, examples, probability, steps, delta):
    """Its optimistic estimate takes minutes."""
    counts = np.arange(examples + 1)
    weights = binom.pmf(counts, examples, probability)
    one = from_mixture_gaussian_mechanism(noise, counts, weights, value_discretization_interval=1e-3)
    theirs = one.self_compose(steps).get_epsilon_for_delta(delta)
    ours = bounds_of(noise, examples, probability, steps=steps, delta=delta)
    assert ours.upper * 0.999 <= ours.lower <= ours.upper
    assert ours.lower <= theirs * (1 + 1e-6)
    assert ours.upper == pytest.approx(theirs, rel=2e-3)


def test_examples_drawn_apart_cost_no_more_than_all_at_once_and_no_less_than_one():
    """A user whose examples were drawn all together would move the sum by all of them with the same probability."""
    apart = bounds_of(4.0, 8, 0.02, steps=100, delta=1e-6)
    together = epsilon_bounds([GaussianEvent(4.0 / 8, 100, 0.02)], 1e-6)
    alone = epsilon_bounds([GaussianEvent(4.0, 100, 0.02)], 1e-6)
    assert alone.upper < apart.lower < apart.upper < together.lower


def test_losses_below_their_rounding_are_bounded():
    """Their grid is finer than floats near the loss tell apart."""
    bounds = bounds_of(25.2, 3, 8e-16, steps=1, delta=1e-15)
    assert 0 <= bounds.lower <= bounds.upper < 1e-12


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_drawn_outcomes_have_the_delta_of_the_bounds(direction):
    """By 400,000 draws of three steps; a false alarm is as rare as five standard deviations."""
    noise, examples, probability, steps, delta = 1.5, 6, 0.2, 3, 0.02
    pair = BinomialMixturePair(1 / noise, probability, examples, direction)
    losses = [(steps, MixedLoss(((1.0, pair),)))]
    upper, lower = upper_epsilon(losses, delta), lower_epsilon(losses, delta)
    draws = np.random.default_rng(7)
    outcomes = draws.normal(size=(400_000, steps))
    if direction == "remove":
        outcomes += draws.binomial(examples, probability, size=outcomes.shape) / noise
    counts = np.arange(examples + 1)
    shifts = counts / noise
    ratio = np.log(
        np.sum(binom.pmf(counts, examples, probability) * np.exp(outcomes[..., None] * shifts - shifts**2 / 2), axis=-1)
    )
    total = np.sum(ratio if direction == "remove" else -ratio, axis=1)
    for epsilon, at_least, at_most in ((upper, 0.0, delta), (lower, delta, 1.0)):
        parts = -np.expm1(np.minimum(epsilon - total, 0.0))
        error = 5 * float(np.std(parts)) / math.sqrt(len(parts))
        assert at_least - error <= float(np.mean(parts)) <= at_most + error
    assert upper_delta(losses, upper) == pytest.approx(delta, rel=1e-2)


def test_little_noise_is_bounded_by_all_examples_at_once_and_by_one():
    """Below a fiftieth of the examples closed forms are taken; with others, which have more noise, too."""
    events = [ExamplesEvent(0.07, 20, 0.05, 4), ExamplesEvent(2.0, 20, 0.05, 4), GaussianEvent(3.0, 5, 0.1)]
    little, more = epsilon_bounds(events[:1], 1e-6), epsilon_bounds(events, 1e-6)
    computed = epsilon_bounds([ExamplesEvent(0.0800001, 20, 0.05, 4)], 1e-6)
    assert computed.upper * 0.999 < computed.lower < little.upper <= more.upper
    assert 0 < little.lower < computed.lower * (0.08 / 0.07) ** 2


def test_numbers_of_examples_that_are_never_drawn_make_no_bound_wide():
    """All 109 are drawn together once in 1e100 steps, and would have a loss of 500."""
    losses = [(1, ExamplesEvent(3.0, 1, 0.12, 109).loss("remove"))]
    assert lower_epsilon(losses, 0.5) >= upper_epsilon(losses, 0.5) * 0.999


def test_examples_compose_with_other_releases_and_are_refused_in_a_selection():
    examples, other = ExamplesEvent(2.0, 50, 0.05, 4), GaussianEvent(3.0, 20, 0.1)
    together = epsilon_bounds([examples, other, StatedEvent(0.1)], 1e-5)
    assert max(epsilon_bounds([one], 1e-5).upper for one in (examples, other)) < together.lower <= together.upper
    assert together.lower > together.upper * 0.99
    halves = [dataclasses.replace(examples, count=25)] * 2
    assert epsilon_bounds(halves, 1e-5) == epsilon_bounds([examples], 1e-5)
    with pytest.raises(ConfigurationError, match="sampled examples"):
        SelectionEvent((examples,), TrialsLaw("poisson", 3.0))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("shift", "probability", "examples"), [(0.5, 0.05, 4), (0.01, 1e-6, 256), (3.0, 0.9, 16)])
def test_outcomes_undo_losses_and_masses_add_up(shift, probability, examples, direction):
    pair = BinomialMixturePair(shift, probability, examples, direction)
    begin, end = pair.range(1e-12)
    u = np.linspace(max(begin, -4.0), min(end, 4.0), 50)
    loss = pair.loss(u)
    assert np.all(np.diff(loss) >= 0)
    np.testing.assert_allclose(pair.loss(pair.outcome(loss)), loss, atol=1e-9)
    assert pair.below(begin) <= 1e-12 * (1 + 1e-9)
    assert pair.above(end)[0] <= 1e-12 * (1 + 1e-9)
    assert pair.below(0.3) + pair.above(0.3)[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((1.0, 0, 0.1, 1), "examples_per_user is 0"),
        ((1.0, 257, 0.1, 1), "256 at most"),
        ((1.0, 2, -0.1, 1), "sampling_probability is -0.1"),
        ((1.0, 2, 1.1, 1), "sampling_probability is 1.1"),
        ((1.0, 2, 0.1, -1), "count of an event is -1"),
        ((1e-9, 2, 0.1, 1), "noise_multiplier is 1e-09"),
        ((math.nan, 2, 0.1, 1), "noise_multiplier is nan"),
        ((math.inf, 2, 0.1, 1), "noise_multiplier is inf"),
    ],
)
def test_numbers_out_of_range_are_refused(words, message):
    noise, examples, probability, steps = words
    with pytest.raises(ConfigurationError, match=message):
        bounds_of(noise, examples, probability, steps=steps, delta=1e-6)


def test_examples_that_are_always_drawn_and_single_ones_are_gaussian_mechanisms():
    assert bounds_of(8.0, 4, 1.0, steps=10, delta=1e-6) == epsilon_bounds([GaussianEvent(2.0, 10)], 1e-6)
    assert bounds_of(2.0, 1, 0.1, steps=10, delta=1e-6) == epsilon_bounds([GaussianEvent(2.0, 10, 0.1)], 1e-6)
    assert bounds_of(2.0, 4, 0.0, steps=10, delta=1e-6) == (0, 0)


def test_the_plan_of_examples_is_accounted_for_the_steps_that_ran():
    plan = central_plan(2000, 100, 50, 2.0, unit="user: at most 4 examples, in all steps", examples_per_user=4)
    assert PrivacyPlan.from_json(plan.as_json()) == plan
    found = account(plan, 1e-5, [(0, 20), (20, 40)])
    assert (found.epsilon, found.epsilon_lower) == bounds_of(2.0, 4, 0.05, steps=40, delta=1e-5)
    assert "training reads at most 4 examples of one user" in found.assumptions[0]
    with pytest.raises(ConfigurationError, match="sampling"):
        dataclasses.replace(plan, mechanism="tree")
    for other in ({"bands": 2}, {"in_bins": True}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(other))} is not accounted"):
            central_plan(2000, 100, 50, 2.0, examples_per_user=4, **other)
