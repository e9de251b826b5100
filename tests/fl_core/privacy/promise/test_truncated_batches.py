"""Epsilon of truncated batches against the densities of what they release, with a person and without."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedlm.fl_core.privacy.accounting.composition import delta_above, epsilon_above
from fedlm.fl_core.privacy.promise.central_plan import central_plan, enough_for_most_batches
from fedlm.fl_core.privacy.promise.guarantee import account, events_of


def released(others, probability, most, size):
    """Means and their probabilities, of a sum of gradients `-size` each: without a person, and with one of gradient 1.

    Of a sample that is too large a uniformly random part is kept.
    """
    numbers = np.arange(others + 1)
    weights = binom.pmf(numbers, others, probability)
    without = (-size * np.minimum(numbers, most), weights)
    kept = np.minimum(most / (numbers + 1), 1.0)
    inside = (1 - size * np.minimum(numbers, most - 1), weights * probability * kept)
    outside = (-size * np.minimum(numbers, most), weights * (1 - probability * kept))
    return without, tuple(np.concatenate(parts) for parts in zip(inside, outside, strict=True))


def delta_at(epsilon, first, second, deviation):
    """Integrate the hockey-stick divergence in both directions; the larger."""
    low = min(first[0].min(), second[0].min()) - 10 * deviation
    x = np.linspace(low, 1 + 10 * deviation, 4001)
    p, q = ((norm.pdf(x[:, None], means, deviation) * weights).sum(axis=1) for means, weights in (first, second))
    return max(np.trapezoid(np.maximum(a - np.exp(epsilon) * b, 0), x) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize(("units", "batch", "most", "noise"), [(20, 18, 20, 5.0), (30, 10, 12, 2.0)])
def test_a_person_may_be_removed_and_added(units, batch, most, noise):
    plan, delta = central_plan(units, batch, 1, noise, truncated_batch_size=most), 1e-3
    epsilon = account(plan, delta).epsilon
    assert delta_above(events_of(plan), epsilon) <= delta * 1.001
    for others in (units - 1, units):
        for size in (0.0, 0.5, 1.0):
            assert delta_at(epsilon, *released(others, batch / units, most, size), noise) <= delta


def test_what_is_added_may_be_all_that_is_cut():
    """With as many places as units nothing is cut but with one more, whose place is another's."""
    events = events_of(central_plan(50, 49, 1, 5.0, truncated_batch_size=50))
    removed = epsilon_above([event.of_neighbours()[0] for event in events], 1e-3)
    # That alone would be broken by who is added.
    assert delta_at(removed, *released(50, 49 / 50, 50, 1.0), 5.0) > 5e-3
    assert epsilon_above(events, 1e-3) > removed


def test_where_one_is_put_in_anothers_place_nobody_is_added():
    (event,) = events_of(central_plan(50, 49, 1, 5.0, truncated_batch_size=50, adjacency="zero_out"))
    assert event.of_neighbours() == (event, event)
    (event,) = events_of(central_plan(50, 49, 1, 5.0, truncated_batch_size=50))
    fixed = dataclasses.replace(event, one_more=False)
    assert event.of_neighbours() == (fixed, dataclasses.replace(fixed, population=51))


@pytest.mark.parametrize("units", [50, 100])
def test_the_choice_of_where_to_cut_costs_next_to_nothing(units):
    """It is the same whatever the number of units, and above it where there are few."""
    whole, cut = (
        central_plan(units, 50, 20, 3.0, truncated_batch_size=most) for most in (None, enough_for_most_batches(50))
    )
    assert account(cut, 1e-5).epsilon == pytest.approx(account(whole, 1e-5).epsilon, rel=1e-3)
