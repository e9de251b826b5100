"""What follows from published laws, against the numbers that the papers print."""

import functools
import math

import pytest

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.figures.fitted_forms import optimal_parameters
from fedlm.simulations.laws.figures.measured import _PANELS
from fedlm.simulations.laws.forms.registry import FORMS
from tests.support.synthetic_laws import CHINCHILLA, MCKENNA_L2


def test_published_laws_have_the_printed_values():
    laws = {name: functools.partial(FORMS[name].predict, values) for name, (values, _) in _PANELS.items()}
    assert laws["kaplan_parameters"]({"non_embedding_parameters": 8.8e13}) == 1
    # A doubling of data takes the loss to 2^-0.095 = 0.936 of what it was.
    ratio = laws["kaplan_data"]({"data_tokens": 2e9}) / laws["kaplan_data"]({"data_tokens": 1e9})
    assert ratio == pytest.approx(0.936, abs=5e-4)
    assert FORMS["chinchilla"].predict(CHINCHILLA, {"parameters": 70e9, "tokens": 1.4e12}) == pytest.approx(
        1.9366, abs=1e-4
    )


def test_a_law_without_some_of_its_coefficients_refuses_to_be_evaluated():
    with pytest.raises(ConfigurationError, match="mckenna_l2: found no value of E, A, B, C"):
        FORMS["mckenna_l2"].predict({"a": 0.47, "b": 0.12, "g": 0.95, "a2": -0.07}, {})


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
