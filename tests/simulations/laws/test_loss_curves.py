import numpy as np
import pytest
from scipy.optimize import curve_fit

from fedlm.simulations.laws.loss_curves import fit_power_curves, parabola_vertices, power_curve

STEPS = np.arange(16_000.0, 128_001, 1000)


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
