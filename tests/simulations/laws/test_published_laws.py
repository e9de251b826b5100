"""What follows from published laws, against the numbers that the papers print."""

import math

import numpy as np
import pytest

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.published import PUBLISHED
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.optimal_size import optimal_parameters
from tests.support.synthetic_laws import MCKENNA_L2


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
