"""Noisy losses smoothed, and curves through few of them, beside SciPy and closed forms."""

import numpy as np
import pytest
from scipy.optimize import curve_fit, isotonic_regression

from fedlm.simulations.laws.surface.smoothing import (
    cumulative_minimum,
    fit_power_curves,
    isotonic,
    parabola_vertices,
    power_curve,
    rolling_mean,
    without_flats,
)

STEPS = np.arange(16_000.0, 128_001, 1000)


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


class TestPowerCurves:
    @pytest.mark.parametrize("coefficients", [(1.3, 40.0, 0.45), (0.0, 9.0, 0.1), (2.0, 3000.0, 0.9), (2.5, 1e6, 1.6)])
    def test_known_curves_are_recovered(self, coefficients):
        found = fit_power_curves(STEPS, power_curve(np.array(coefficients), STEPS), np.ones(len(STEPS)))
        assert np.allclose(found, coefficients, rtol=1e-4, atol=1e-4)

    def test_as_levenberg_marquardt_finds_them_from_the_truth(self):
        random = np.random.default_rng(0)
        losses = power_curve(np.array([1.5, 60.0, 0.5]), STEPS) + 0.01 * random.normal(size=(20, len(STEPS)))
        found = fit_power_curves(STEPS, losses, np.ones(len(STEPS)))
        for loss, ours in zip(losses, found, strict=True):
            theirs, _ = curve_fit(lambda t, e, a, m: e + a * (t / 128_000) ** -m, STEPS, loss, (1.5, 0.17, 0.5))
            squares = [((loss - e - a * (STEPS / 128_000) ** -m) ** 2).sum() for e, a, m in (theirs,)]
            left = ((loss - power_curve(ours, STEPS)) ** 2).sum()
            assert left <= squares[0] * (1 + 1e-9) or theirs[0] < 0  # E below 0 is not ours to find

    def test_a_known_limit_is_kept_and_missing_losses_do_not_count(self):
        losses = np.tile(power_curve(np.array([1.3, 40.0, 0.45]), STEPS), (2, 1))
        losses[1, ::3] = np.nan
        found = fit_power_curves(STEPS, losses, np.ones(len(STEPS)), np.array([1.3, 1.3]))
        assert np.allclose(found, [1.3, 40.0, 0.45], rtol=1e-4)
        losses[1, 2:] = np.nan
        assert np.isnan(fit_power_curves(STEPS, losses, np.ones(len(STEPS)))[1]).all()

    def test_losses_that_do_not_fall_are_a_constant(self):
        limit, scale, _ = fit_power_curves(STEPS, np.linspace(2.0, 2.1, len(STEPS)), np.ones(len(STEPS)))
        assert np.allclose((limit, scale), (2.05, 0))


class TestParabolas:
    LOGS = np.log(2.0 ** np.arange(-10, -4))

    def test_the_vertex_is_found(self):
        at, lowest = parabola_vertices(self.LOGS, 3 + 0.2 * (self.LOGS + 5.5)[None] ** 2)
        assert np.allclose((at[0], lowest[0]), (-5.5, 3))

    def test_missing_rates_do_not_count(self):
        losses = 3 + 0.2 * (self.LOGS + 5.5) ** 2
        losses[[0, 3, 5]] = np.nan
        assert np.allclose(parabola_vertices(self.LOGS, losses), (-5.5, 3))

    @pytest.mark.parametrize(
        "losses", [[3, 2.6, 2.2, 1.7, 1.1, 0.5], [1, 2, 3, 3, 2, 1.5], [np.nan, np.nan, 2, np.nan, 1, np.nan]]
    )
    def test_the_least_measured_loss_where_there_is_no_vertex_among_the_rates(self, losses):
        place = int(np.nanargmin(losses))
        assert np.allclose(parabola_vertices(self.LOGS, np.array(losses, float)), (self.LOGS[place], losses[place]))

    def test_nothing_is_known_of_nothing(self):
        assert np.isnan(parabola_vertices(self.LOGS, np.full(6, np.nan))).all()
