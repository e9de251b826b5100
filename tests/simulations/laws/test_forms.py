"""Parametric laws: gradients, coefficients that are found again, and words where the data cannot tell them."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.fitting import fit_form
from fedlm.simulations.laws.forms.mckenna_l2 import saturating_noise
from fedlm.simulations.laws.forms.problem import make_problem
from fedlm.simulations.laws.forms.registry import FORMS
from tests.simulations.laws.grids import CHINCHILLA, MCKENNA_L2, grid, obeying

NOISED = tuple(2.0**-k for k in range(6, 21, 2))
LONG = (1_000, 4_000, 16_000, 64_000, 256_000)


@pytest.mark.parametrize("name", FORMS)
def test_objectives_have_the_derivatives_of_finite_differences(name):
    form, random = FORMS[name], np.random.default_rng(1)
    problem = make_problem(form, grid(noise_batch_ratios=(2.0**-12, 2.0**-9)))
    weights = random.dirichlet(np.ones(len(problem.log_target)))
    for _ in range(3):
        start = problem.start(random)
        expected = approx_fprime(start, lambda at: problem.objective(at, weights)[0], 1e-7)
        np.testing.assert_allclose(problem.objective(start, weights)[1], expected, atol=1e-5)


def test_the_coefficients_of_chinchilla_are_found_again():
    """An interval of 99 % misses its coefficient in 1 % of data sets at its nominal level; this is one data set."""
    form = FORMS["chinchilla"]
    fitted = fit_form(form, obeying(form, CHINCHILLA, grid(steps=LONG, seeds=3), 0.003), starts=6, draws=60, level=0.99)
    assert all(fitted.identified.values()), fitted.reasons
    for name, value in CHINCHILLA.items():
        assert fitted.intervals[name].low < value < fitted.intervals[name].high
    assert fitted.root_mean_square_log_error == pytest.approx(0.003, rel=0.3)
    assert fitted.agreeing_starts >= 3


def test_the_coefficients_of_the_second_form_are_exact_without_noise():
    form = FORMS["mckenna_l2"]
    exact = obeying(form, MCKENNA_L2, grid(steps=LONG, noise_batch_ratios=NOISED))
    fitted = fit_form(form, exact, starts=8, draws=0)
    assert fitted.coefficients == pytest.approx(MCKENNA_L2, rel=0.02)
    assert fitted.root_mean_square_log_error < 1e-4


def test_the_sigmoid_is_of_natural_logarithms():
    """Its centre is e^-8 = 2^-11.5, the middle of the published grid of 2^-23 to 2^-6; 2^-8 and 10^-8 are not."""
    assert saturating_noise(math.exp(-8)) == pytest.approx(0.5)
    assert -math.log2(math.exp(-8)) == pytest.approx(11.54, abs=0.01)
    assert saturating_noise([0.0, 1e9]).tolist() == pytest.approx([0, 1], abs=1e-6)


def test_a_fitted_form_is_read_from_its_json():
    form = FORMS["chinchilla"]
    fitted = fit_form(form, obeying(form, CHINCHILLA, grid(), 0.01), starts=2, draws=4)
    again = FittedForm.from_json("chinchilla", json.loads(json.dumps(fitted.to_json())))
    assert again == fitted
    assert again.predict({"parameters": 1e8, "tokens": 1e10}) == fitted.predict({"parameters": 1e8, "tokens": 1e10})


def test_fits_of_the_same_seed_are_the_same():
    form = FORMS["chinchilla"]
    measured = obeying(form, CHINCHILLA, grid(), 0.01)
    assert fit_form(form, measured, starts=2, draws=3) == fit_form(form, measured, starts=2, draws=3)
    assert fit_form(form, measured, starts=2, draws=3, seed=1) != fit_form(form, measured, starts=2, draws=3)


def test_a_grid_too_small_is_refused():
    with pytest.raises(ConfigurationError, match=r"chinchilla: found 4 different points .* expected at least 5"):
        fit_form(FORMS["chinchilla"], grid(sizes=(1000,)))
