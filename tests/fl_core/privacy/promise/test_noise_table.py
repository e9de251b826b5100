"""Noise of very many trainings is that of the accountant, to what the table states."""

import math

import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.composition import epsilon_bounds
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier
from fedlm.fl_core.privacy.accounting.noise_search import LEAST_NOISE, Training, least_noise
from fedlm.fl_core.privacy.accounting.release_events import GaussianEvent
from fedlm.fl_core.privacy.promise.noise_table import TABLE_ERROR, make_noise_table


def noise_is_least(noise, probability, steps, epsilon, delta, error):
    """Whether the accountant's bounds allow that the least noise is within a relative error of this."""
    ends = [GaussianEvent(float(noise * (1 + sign * error)), int(steps), float(probability)) for sign in (1, -1)]
    more, less = (epsilon_bounds([event], delta) for event in ends)
    return more.lower <= epsilon <= less.upper


@pytest.mark.parametrize(
    ("passes", "steps", "epsilon", "delta"),
    [
        (1.52e-3, 840, 0.385, 1e-6),
        (0.152, 810, 0.323, 3e-6),
        (0.03, 230, 0.336, 1e-9),
        (50, 3000, 4.0, 1e-8),
        pytest.param(7.63, 129_836, 0.2, 2.9e-7, marks=pytest.mark.long),
    ],
)
def test_a_search_holds_where_an_example_is_hardly_ever_drawn_and_epsilon_is_small(passes, steps, epsilon, delta):
    noise = least_noise(Training(passes / steps, steps, epsilon, delta))
    assert noise_is_least(noise, passes / steps, steps, epsilon, delta, 2e-4)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.3, 1e-8),
        pytest.param(4.0, 1e-8, marks=pytest.mark.long),
        pytest.param(2.0, 1e-12, marks=pytest.mark.long),
        *(pytest.param(epsilon, 1e-8, marks=pytest.mark.thorough) for epsilon in (0.1, 1.0, 16.0, 64.0)),
    ],
)
def test_the_table_is_the_search_to_what_it_states(epsilon, delta):
    """From a hundredth of a pass to every example in every step, over the steps that the published surface has."""
    table = make_noise_table(epsilon, delta, (1000, 8.192e6), 8.192e6)
    rng = np.random.default_rng(2)
    steps = np.round(10 ** rng.uniform(3, 6.9, 15))
    probability = np.minimum(10 ** rng.uniform(-2, np.log10(steps)) / steps, 0.999)
    searched = [least_noise(Training(*one, epsilon, delta)) for one in zip(probability, steps.astype(int), strict=True)]
    error = np.abs(table.noise_multiplier(1e9, probability * 1e9, steps) / searched - 1)
    assert error.max() < TABLE_ERROR
    assert np.median(error) < 1e-5


def test_where_an_example_is_hardly_ever_drawn_noise_is_enough():
    table = make_noise_table(1.0, 1e-6, (300, 10_000), 2.0)
    noise = float(table.noise_multiplier(1e9, 1000, 1000))
    assert epsilon_bounds([GaussianEvent(noise, 1000, 1e-6)], 1e-6).upper < 1.0
    assert noise == pytest.approx(float(table.noise_multiplier(1e8, 1000, 1000)))
    assert noise < 0.9 * float(table.noise_multiplier(1e7, 1000, 1000))


def test_a_batch_of_all_examples_needs_the_noise_of_every_step_and_none_is_known_for_more():
    table = make_noise_table(8.0, 1e-6, (300, 1000), 300)
    whole = gaussian_noise_multiplier(8.0, 1e-6) * math.sqrt(300)
    assert float(table.noise_multiplier(1000, 1000, 300)) == pytest.approx(whole, rel=TABLE_ERROR)
    assert np.isnan(table.noise_multiplier(1000, 1001, 300))


def test_nothing_outside_the_table_is_looked_up():
    table = make_noise_table(8.0, 1e-6, (300, 1000), 10)
    with pytest.raises(ValueError, match="of a table from"):
        table.noise_multiplier(1e6, 10, 5)
    with pytest.raises(ConfigurationError, match="epsilon is inf"):
        make_noise_table(math.inf, 1e-6, (300, 1000), 10)
    assert least_noise(Training(1e-9, 100, 1.0, 1e-6)) == LEAST_NOISE
