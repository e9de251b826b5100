"""Bounds where samples are cut and noise is little, against losses that are drawn at random."""

from fractions import Fraction

import numpy as np
import pytest

from fedlm.fl_core.privacy.accounting.composition import epsilon_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.joint_convexity import upper_epsilon
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent, StatedEvent


def drawn_losses(event, trials):
    """Sums of privacy losses, by the pairs that the event is described by."""
    rng = np.random.default_rng(0)
    (weight, whole), *others = event.loss("remove").pairs
    total = np.zeros(trials)
    for _ in range(event.count):
        kind, there, noise = rng.random(trials), rng.random(trials), rng.standard_normal(trials)
        losses = whole.loss(noise + np.where(there < whole.probability, whole.shift, 0.0))
        for _, other in others:
            cut = other.loss(noise + np.where(there < other.probability, other.shift, 0.0))
            losses = np.where(kind < weight, losses, cut)
        total += losses
    return total


def test_rounding_leaves_no_more_of_delta_than_stated_releases_do():
    """0.7 + 0.1 is 0.8 less 8.3e-17, and 0.8 less 1.1e-16 in floats."""
    left = float(Fraction(0.8) - Fraction(0.7) - Fraction(0.1))
    noise = GaussianEvent(0.01, 1, 0.5)
    found = epsilon_above([StatedEvent(0.0, 0.7), StatedEvent(0.0, 0.1), noise], 0.8)
    assert found >= upper_epsilon([noise.releases()], left)


def epsilon_of(losses, delta):
    low, high = 0.0, float(losses.max())
    for _ in range(60):
        middle = (low + high) / 2
        found = np.mean(np.where(losses > middle, -np.expm1(np.minimum(middle - losses, 0.0)), 0.0))
        low, high = (middle, high) if found > delta else (low, middle)
    return low


@pytest.mark.parametrize(
    ("noise", "probability", "count", "population", "most"),
    [(0.015, 0.05, 20, 1000, 55), (0.015, 0.3, 10, 100, 32), (0.019, 0.5, 5, 20, 9), (0.015, 0.05, 20, None, None)],
)
def test_bounds_contain_the_truth_and_are_of_its_size(noise, probability, count, population, most):
    event = GaussianEvent(noise, count, probability, population, most)
    losses = drawn_losses(event, 60_000)
    for delta in (1e-2, 3e-3):
        bounds, truth = epsilon_bounds([event], delta), epsilon_of(losses, delta)
        assert 0 < bounds.lower <= 1.03 * truth
        # Drawn at random, the truth is known within 3 per cent.
        assert 0.97 * truth <= bounds.upper <= 2.0 * truth
