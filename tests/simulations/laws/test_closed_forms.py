"""What follows from published laws, against the numbers that the papers print."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.published import PUBLISHED
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.kaplan_optimum import (
    ALPHA_N,
    ALPHA_S,
    allocation,
    compute_exponent,
    efficient_excess,
    enough_tokens,
    other_size,
    parameters_exponent,
    stopping_early,
)
from fedlm.simulations.laws.optimal_size import optimal_parameters
from tests.simulations.laws.grids import MCKENNA_L2


def test_stopping_early_takes_larger_models_fewer_steps_and_less_compute():
    """Kaplan et al.: 2.7 times the parameters, 65 % less compute; 7.7 times fewer steps is 1 / 0.13, rounded."""
    assert efficient_excess() == pytest.approx(0.1)
    found = stopping_early()
    assert found.parameters == pytest.approx(2.701, abs=5e-4)
    assert 1 / found.steps == pytest.approx(7.526, abs=5e-4)
    assert found.compute == pytest.approx(0.3589, abs=5e-5)
    assert round(found.steps, 2) == 0.13
    assert round(1 / round(found.steps, 2), 1) == 7.7


@pytest.mark.parametrize(("size", "compute", "steps"), [(0.6, 1.164, 1.941), (1, 1, 1), (2.2, 1.203, 0.547)])
def test_models_from_0_6_to_2_2_of_the_best_size_cost_at_most_a_fifth_more(size, compute, steps):
    found = other_size(size)
    assert found.compute == pytest.approx(compute, abs=6e-4)
    assert found.steps == pytest.approx(steps, abs=6e-4)


def test_the_best_size_costs_least_and_too_small_a_model_never_gets_there():
    least = minimize_scalar(lambda size: other_size(size).compute, bounds=(0.2, 5), method="bounded")
    assert least.x == pytest.approx(1, abs=1e-3)
    smallest = (1 + ALPHA_N / ALPHA_S) ** (-1 / ALPHA_N)
    assert math.isfinite(other_size(smallest * 1.001).compute)
    assert other_size(smallest * 0.999).steps == math.inf


def test_closed_forms_agree_with_the_law_that_they_come_from():
    """Minimise N times S_min at a loss under L(N, S_min) numerically."""
    law = {**PUBLISHED["kaplan2020_parameters_and_steps"].values}
    loss = 3.0
    n, s = law["alpha_N"], law["alpha_S"]

    def steps(parameters: float) -> float:
        return law["S_c"] * (loss - (law["N_c"] / parameters) ** n) ** (-1 / s)

    converged = law["N_c"] * loss ** (-1 / n)
    best = minimize_scalar(
        lambda log: log + math.log(steps(math.exp(log))), bounds=(math.log(converged * 1.01), 40), method="bounded"
    )
    size = math.exp(best.x)
    assert loss / (law["N_c"] / size) ** n - 1 == pytest.approx(efficient_excess(n, s), rel=1e-3)
    other = converged * 1.02 ** (1 / n)
    found = stopping_early(alpha_n=n, alpha_s=s)
    assert size / other == pytest.approx(found.parameters, rel=1e-3)
    assert steps(size) / steps(other) == pytest.approx(found.steps, rel=1e-3)
    assert steps(0.6 * size) / steps(size) == pytest.approx(other_size(0.6, n, s).steps, rel=1e-3)


def test_exponents_that_the_laws_imply():
    """The paper fits 0.050 and 0.73."""
    assert compute_exponent() == pytest.approx(0.0520, abs=5e-5)
    assert parameters_exponent() == pytest.approx(0.684, abs=5e-4)


def test_the_best_allocation_has_the_printed_exponents_and_the_data_outgrow_it():
    one, ten = allocation([1, 10]).__dict__, allocation(10.0).__dict__
    slopes = {name: math.log10(ten[name] / one[name][0]) for name in one}
    assert slopes == pytest.approx({"parameters": 0.73, "batch_tokens": 0.24, "steps": 0.03, "tokens": 0.27})
    # Batch times least steps is half of the tokens: batches of the critical size take twice the least steps.
    assert one["tokens"][0] / (one["batch_tokens"][0] * one["steps"][0]) == pytest.approx(1.85, abs=0.01)
    # 8 times the parameters need 5 times the data (section 4.3).
    assert enough_tokens(8e9) / enough_tokens(1e9) == pytest.approx(4.66, abs=0.01)


def test_published_laws_have_the_printed_values():
    at = {name: law.predict for name, law in PUBLISHED.items() if not law.missing}
    # A doubling of data takes the loss to 2^-0.095 = 0.936 of what it was.
    ratio = at["kaplan2020_data"]({"data_tokens": 2e9}) / at["kaplan2020_data"]({"data_tokens": 1e9})
    assert ratio == pytest.approx(0.936, abs=5e-4)
    batch = at["kaplan2020_critical_batch"]({"loss": [3.0, 3.0 * 0.87]})
    assert batch[1] / batch[0] == pytest.approx(2, rel=0.05)
    # Endless data leave the law of parameters of the same fit.
    both = at["kaplan2020_parameters_and_data"]({"non_embedding_parameters": 1e9, "data_tokens": np.inf})
    assert both == pytest.approx((6.4e13 / 1e9) ** 0.076)
    assert at["chinchilla"]({"parameters": 70e9, "tokens": 1.4e12}) == pytest.approx(1.9366, abs=1e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_laws_name_coefficients_of_their_form(name):
    law = PUBLISHED[name]
    assert set(law.values) <= set(FORMS[law.form].names)
    assert bool(law.missing) == name.startswith("mckenna2025")


def test_laws_without_published_coefficients_refuse_to_be_evaluated():
    with pytest.raises(ConfigurationError, match=r"mckenna_l1: .* publishes a, b, g but not E, A, B, C: .*laws fit"):
        PUBLISHED["mckenna2025_l1"].predict({"parameters": 1e8})
    with pytest.raises(ConfigurationError, match="mckenna_l2: found no value of E, A, B, C"):
        FORMS["mckenna_l2"].predict(PUBLISHED["mckenna2025_l2"].values, {})


def test_without_noise_the_best_size_is_the_closed_form():
    """Hoffmann et al., equation 4: M = G (C / 6)^(b / (a + b)), with examples of `length` tokens."""
    a, b = MCKENNA_L2["a"], MCKENNA_L2["b"]
    for compute in (1e18, 1e22):
        positions = compute / 6 / 512
        expected = (a * MCKENNA_L2["A"] / (b * MCKENNA_L2["B"]) * positions**b) ** (1 / (a + b))
        assert optimal_parameters(MCKENNA_L2, compute, 0, 512)[0] == pytest.approx(expected, rel=1e-3)


def test_the_best_size_grows_slower_with_compute_where_there_is_more_noise():
    """Figure 19: slopes fall with noise and tend to that without."""

    def slope(noise: float) -> float:
        small, large = (optimal_parameters(MCKENNA_L2, compute, noise, 512)[0] for compute in (1e19, 1e21))
        return math.log(large / small, 100)

    slopes = [slope(noise) for noise in (0, 2.0**-40, 2.0**-18, 2.0**-14, 2.0**-10)]
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[0] == pytest.approx(MCKENNA_L2["b"] / (MCKENNA_L2["a"] + MCKENNA_L2["b"]), abs=1e-3)
    assert slopes[1] == pytest.approx(slopes[0], abs=1e-3)
    assert slopes[-1] < slopes[0] - 0.02


def test_a_best_size_at_the_end_of_the_search_is_none():
    assert math.isnan(optimal_parameters(MCKENNA_L2, 1e18, 0, 512, sizes=(1e3, 1e5))[0])
