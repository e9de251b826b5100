import math
import random

import numpy as np
import pytest
from scipy import stats

from fedlm.fl_core.privacy.noise.integer_noise import discrete_gaussian, rounded_gaussian

DRAWS = 20_000
FALSE_ALARMS = 1e-6  # of each test, over fair coins; with these seeds it alarms always or never


def agrees(drawn, probability):
    """Compare how often integers were drawn with their probabilities, those in the tails together."""
    values = np.arange(-60, 61)
    expected = DRAWS * np.array([probability(int(value)) for value in values])
    common = expected >= 10
    observed = np.array([np.count_nonzero(drawn == value) for value in values[common]])
    observed = np.append(observed, DRAWS - observed.sum())
    expected = np.append(expected[common], DRAWS - expected[common].sum())
    return stats.chisquare(observed, expected).pvalue > FALSE_ALARMS


@pytest.mark.parametrize("sigma", [1, 5])
def test_discrete_gaussian_has_its_probabilities(sigma):
    below = random.Random(sigma).randrange
    drawn = np.array([discrete_gaussian(sigma, below) for _ in range(DRAWS)])
    total = sum(math.exp(-(value**2) / (2 * sigma**2)) for value in range(-100, 101))
    assert agrees(drawn, lambda value: math.exp(-(value**2) / (2 * sigma**2)) / total)
    assert not agrees(drawn, lambda value: stats.norm.pdf(value, scale=1.1 * sigma))


def test_rounded_gaussian_is_a_gaussian_that_is_rounded():
    below = random.Random(0).randrange
    drawn = np.array([rounded_gaussian(1, below) for _ in range(DRAWS)])
    assert agrees(drawn, lambda value: stats.norm.cdf(value + 0.5) - stats.norm.cdf(value - 0.5))
    # The discrete Gaussian of the same parameter is another distribution, which has less variance.
    assert not agrees(drawn, lambda value: math.exp(-(value**2) / 2) / 2.5066282880429055)


def test_the_fine_grid_is_as_good_as_none():
    # Of a discrete Gaussian of parameter s against a continuous one rounded to its grid: total variation below 1/s^2.
    for sigma in (4, 16):
        values = np.arange(-20 * sigma, 20 * sigma + 1)
        discrete = np.exp(-(values**2) / (2 * sigma**2))
        rounded = stats.norm.cdf(values + 0.5, scale=sigma) - stats.norm.cdf(values - 0.5, scale=sigma)
        distance = np.abs(discrete / discrete.sum() - rounded).sum() / 2
        assert 0 < distance < 1 / sigma**2


def test_noise_is_fresh():
    assert len({rounded_gaussian(1 << 60) for _ in range(20)}) == 20
