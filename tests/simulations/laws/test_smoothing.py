import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from fedlm.simulations.laws.smoothing import cumulative_minimum, isotonic, rolling_mean, without_flats


class TestIsotonic:
    def test_rows_as_scipy_regresses_them_with_missing_left_out(self):
        values = np.random.default_rng(0).normal(size=(3, 4, 30)) - np.linspace(0, 2, 30)
        values[1, 2, [0, 7, 8, 29]] = np.nan
        values[2, 3] = np.nan
        found = isotonic(values, increasing=False)
        assert np.array_equal(found[0, 1], isotonic_regression(values[0, 1], increasing=False).x)
        known = np.isfinite(values[1, 2])
        assert np.array_equal(found[1, 2, known], isotonic_regression(values[1, 2, known], increasing=False).x)
        assert np.array_equal(np.isnan(found), np.isnan(values))

    def test_unbiased_where_the_cumulative_minimum_is_too_low(self):
        # 400 rows of 200 normal losses about a falling curve; the mean error of isotonic regression away from the ends
        # has a standard deviation below 0.001, so that 0.005 is passed by chance less than once in 10^6.
        truth = 3 + np.geomspace(1, 0.5, 200)
        noisy = truth + 0.1 * np.random.default_rng(1).normal(size=(400, 200))
        inner = slice(40, 160)
        assert abs((isotonic(noisy, increasing=False) - truth)[:, inner].mean()) < 0.005
        assert (cumulative_minimum(noisy) - truth)[:, inner].mean() < -0.1


class TestOthers:
    def test_cumulative_minimum_passes_over_missing_values(self):
        assert np.array_equal(
            cumulative_minimum(np.array([3.0, np.nan, 4.0, 2.0])), [3.0, np.nan, 3.0, 2.0], equal_nan=True
        )

    @pytest.mark.parametrize("window", [1, 3, 10, 50])
    def test_rolling_mean_of_those_before(self, window):
        values = np.random.default_rng(0).normal(size=(2, 40))
        values[0, [5, 6]] = np.nan
        found = rolling_mean(values, window)
        for row, place in np.ndindex(values.shape):
            before = values[row, max(0, place - window + 1) : place + 1]
            expected = np.nan if np.isnan(before[-1]) else np.nanmean(before)
            assert np.isclose(found[row, place], expected, equal_nan=True)

    def test_flats_are_joined_at_their_middles(self):
        flat = np.array([[5.0, 5.0, 5.0, np.nan, 2.0, 2.0, 1.0]])
        assert np.allclose(
            without_flats(flat), [[5, 5, 5 - 3 / 3.5, np.nan, 2 + 0.5 / 3.5 * 3, 2 - 1 / 3, 1]], equal_nan=True
        )
