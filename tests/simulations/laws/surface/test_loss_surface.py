"""Noisy losses smoothed, and curves through few of them, beside SciPy and closed forms."""

import dataclasses

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from fedlm.simulations.laws.surface.loss_surface import LossSurface
from fedlm.simulations.laws.surface.smoothing import (
    fit_power_curves,
    isotonic,
    power_curve,
)


def surface_of(
    loss,
    noiseless=None,
    draws=0,
    parameters=(1e5, 1e6, 1e7),
    steps=(100.0, 1000.0),
    ratios=(1e-4, 1e-2),
    interpolation="monotone-cubic",
):
    """Make a surface of a function of logarithms: loss(log10 parameters, log10 steps, log10 ratio)."""
    parameters, steps, ratios = (np.array(axis) for axis in (parameters, steps, ratios))
    at = np.meshgrid(np.log10(parameters), np.log10(steps), np.log10(ratios), indexing="ij")
    values = loss(*at) * np.ones(at[0].shape)
    quiet = values[..., 0] - 1 if noiseless is None else noiseless
    return LossSurface(
        models=tuple(f"model{number}" for number in range(len(parameters))),
        parameters=parameters,
        steps=steps,
        noise_batch_ratios=ratios,
        loss=values,
        noiseless=quiet,
        learning_rates=np.full(values.shape, 0.25),
        noiseless_learning_rates=np.full(quiet.shape, 0.5),
        curves=np.zeros((len(parameters), 1 + len(ratios), 3)),
        measured_steps=1000.0,
        batch_size=32,
        length=32,
        method="paper",
        draws=values * np.linspace(0.9, 1.1, draws)[:, None, None, None],
        noiseless_draws=quiet * np.linspace(0.9, 1.1, draws)[:, None, None],
        interpolation=interpolation,
    )


def multilinear(size, steps, ratio):
    return 9 - size / 4 - steps / 2 + ratio * size / 8


class TestPrediction:
    @pytest.mark.parametrize("interpolation", ["linear", "monotone-cubic"])
    def test_exact_at_points_and_where_the_loss_is_linear_in_the_logarithms(self, interpolation):
        surface = surface_of(multilinear, interpolation=interpolation)
        assert np.allclose(surface.predict(1e6, 1000, 1e-4), multilinear(6, 3, -4), rtol=1e-14)
        assert surface.predict(1e6, 1000, 1e-4).shape == surface.learning_rate(1e6, 1000, 1e-4).shape == ()
        sizes, steps = np.array([[1e5], [10**5.5], [1e7]]), np.array([100, 10**2.3])
        expected = multilinear(np.log10(sizes), np.log10(steps), -3.3)
        found = surface.predict(sizes, steps, 10**-3.3)
        assert found.shape == (3, 2)
        assert found.dtype == np.float64
        assert np.allclose(found, expected, rtol=1e-12)

    def test_the_code_interpolates_the_logarithm_of_the_loss_and_without_noise_the_noiseless_grid_counts(self):
        surface = surface_of(multilinear)
        ends = surface.predict(1e6, [100, 1000], 1e-4)
        middle = dataclasses.replace(surface, method="code").predict(1e6, 10**2.5, 1e-4)
        assert np.isclose(middle, np.sqrt(ends.prod()), rtol=1e-12)
        assert np.isclose(surface.predict(1e6, 1000, 0), multilinear(6, 3, -4) - 1)
        assert np.array_equal(surface.learning_rate(1e6, 500, [0, 1e-3]), [0.5, 0.25])

    def test_outside_the_grid_there_is_no_loss_unless_it_is_asked_for(self):
        surface = surface_of(multilinear)
        for point in (
            (9e4, 500, 1e-3),
            (1e6, 1001, 1e-3),
            (1e6, 500, 1e-5),
            (1e6, 500, 2e-2),
            (1e6, 500, -1e-3),
            (0, 500, 0),
        ):
            assert np.isnan(surface.predict(*point))
            assert np.isnan(surface.learning_rate(*point))
        assert np.isclose(surface.predict(1e8, 1e4, 1e-5, extrapolate=True), multilinear(8, 4, -5))
        assert np.isnan(surface.predict(-1, 1e4, 1e-5, extrapolate=True))
        # Edges belong to it, though logarithms round.
        surface = surface_of(multilinear, parameters=(3.0e5, 7.7e6), steps=(96.0, 1024.0), ratios=(2.0**-14, 2.0**-6))
        assert np.isfinite(surface.predict(7.7e6, np.exp(np.log(1024.0)), np.exp(np.log(2.0**-6)))).all()
        alone = surface_of(multilinear, parameters=(1e6,))
        assert np.isclose(alone.predict(1e6, 1000, 1e-4), multilinear(6, 3, -4))
        assert np.isnan(alone.predict(1.1e6, 1000, 1e-4))

    def test_a_missing_value_is_missing_only_where_it_has_weight(self):
        surface = surface_of(multilinear)
        surface.loss[2, :, 1] = np.nan
        assert np.isfinite(surface.predict([1e6, 1e7], 500, [1e-2, 1e-4])).all()
        assert np.isnan(surface.predict([1e7, 2e6], 500, [1e-3, 1e-2])).all()


class TestBands:
    def test_quantiles_of_draws(self):
        surface = surface_of(multilinear, draws=99)
        loss = surface.predict(1e6, 500, [0, 1e-3])
        low, high = surface.band(1e6, 500, [0, 1e-3], level=0.5)
        # The 25th and the 75th of 99 draws from 0.9 to 1.1 of the loss.
        assert np.allclose(low / loss, 0.9 + 0.2 * 24 / 98)
        assert np.allclose(high / loss, 1.1 - 0.2 * 24 / 98)
        assert surface.predict_draws(1e6, 500, [0, 1e-3]).shape == (99, 2)

    def test_between_points_they_hold_both_ways_of_interpolating(self):
        surface = surface_of(lambda size, steps, ratio: 3 + np.exp(ratio), draws=9, ratios=10.0 ** np.arange(-4, 0))
        low, high = surface.band(1e6, 500, 10**-1.5, level=0.1)
        cubic = surface.predict(1e6, 500, 10**-1.5)
        linear = dataclasses.replace(surface, interpolation="linear").predict(1e6, 500, 10**-1.5)
        assert abs(cubic - (3 + np.exp(-1.5))) < abs(linear - (3 + np.exp(-1.5))) / 3
        assert low < cubic < linear < high


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


class TestPowerCurves:
    @pytest.mark.parametrize("coefficients", [(1.3, 40.0, 0.45), (0.0, 9.0, 0.1), (2.0, 3000.0, 0.9), (2.5, 1e6, 1.6)])
    def test_known_curves_are_recovered(self, coefficients):
        found = fit_power_curves(STEPS, power_curve(np.array(coefficients), STEPS), np.ones(len(STEPS)))
        assert np.allclose(found, coefficients, rtol=1e-4, atol=1e-4)
        # Losses that do not fall are a constant.
        limit, scale, _ = fit_power_curves(STEPS, np.linspace(2.0, 2.1, len(STEPS)), np.ones(len(STEPS)))
        assert np.allclose((limit, scale), (2.05, 0))

    def test_a_known_limit_is_kept_and_missing_losses_do_not_count(self):
        losses = np.tile(power_curve(np.array([1.3, 40.0, 0.45]), STEPS), (2, 1))
        losses[1, ::3] = np.nan
        found = fit_power_curves(STEPS, losses, np.ones(len(STEPS)), np.array([1.3, 1.3]))
        assert np.allclose(found, [1.3, 40.0, 0.45], rtol=1e-4)
        losses[1, 2:] = np.nan
        assert np.isnan(fit_power_curves(STEPS, losses, np.ones(len(STEPS)))[1]).all()
