"""Statistical tests here fail by chance with probability 10^-6 each for a seed drawn at random."""

import math

import numpy as np
import pytest
from scipy import stats

from fedlm.fl_core.errors import DataError
from fedlm.simulations.evaluation.memorization.exposure import CHANCE, exposure, extrapolated_exposure, median_interval

REFERENCES = np.arange(1.0, 1024)  # 1023 losses


def test_exposure_of_a_known_rank():
    losses = np.array([0.5, 1.5, 3.5, 511.5, 1023.5])  # ranks 1, 2, 4, 512 and 1024 among 1024
    np.testing.assert_allclose(exposure(losses, REFERENCES[::-1]), [10, 9, 8, 1, 0], atol=1e-12)
    # A reference that ties comes before the canary.
    assert exposure(np.array([1.0]), REFERENCES)[0] == 9
    with pytest.raises(DataError, match="not a finite number"):
        exposure(np.array([np.nan]), REFERENCES)


def test_exposure_of_what_was_never_seen_is_that_of_chance():
    rng = np.random.default_rng(0)
    found = exposure(rng.normal(size=4000), rng.normal(size=100_000))
    # -log2 of a uniform number: mean and standard deviation are 1 / ln 2.
    assert abs(found.mean() - CHANCE) < stats.norm.isf(5e-7) * CHANCE * math.sqrt(1 / 4000 + 2 / 100_000)


@pytest.mark.parametrize("canaries", [6, 8, 20, 101])
def test_the_interval_of_a_median_covers_it_whatever_the_distribution(canaries):
    low, high = (int(bound) for bound in median_interval(np.arange(canaries, 0.0, -1.0), 11.0))
    # The median is below the low-th smallest number if fewer than `low` numbers are below it; and so above.
    beside = stats.binom.cdf(low - 1, canaries, 0.5)
    assert high == canaries + 1 - low
    assert 2 * beside <= 0.05 < 2 * stats.binom.cdf(low, canaries, 0.5)
    assert median_interval(np.full(5, 11.0), 11.0) == (0.0, 11.0)


def test_extrapolation_agrees_with_ranks_and_goes_beyond_them():
    references = stats.skewnorm(3, 8, 0.3).rvs(20_000, random_state=np.random.default_rng(1))
    losses = np.array([8.4, 8.1, 7.9, 6.0, 0.01])
    found, distance = extrapolated_exposure(losses, references)
    assert distance < stats.kstwo.isf(1e-6, 20_000)
    np.testing.assert_allclose(found[:3], exposure(losses, references)[:3], atol=0.2)
    assert np.isfinite(found).all()
    assert (np.diff(found) > 0).all()
    assert found[3] > math.log2(20_001)


def test_the_far_tail_is_that_of_the_fit(monkeypatch):
    normal = stats.skewnorm(0.0, 2.0, 0.5)
    monkeypatch.setattr(stats.skewnorm, "fit", lambda data: (0.0, 2.0, 0.5))
    losses = np.array([3.0, 2.0, 0.0, -8.0])
    found, _ = extrapolated_exposure(losses, normal.rvs(100, random_state=0))
    np.testing.assert_allclose(found, -stats.norm(2.0, 0.5).logcdf(losses) / math.log(2), rtol=1e-3)
