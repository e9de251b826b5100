"""Banded inverse square roots: their coefficients, and their error beside other mechanisms."""

import numpy as np
import pytest
import scipy.special

from fedlm.fl_core.privacy.mechanisms.bisr import MECHANISM, inverse_square_root
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.plan import plan_noise


def test_coefficients_are_those_of_the_power_series():
    found = inverse_square_root(32)
    np.testing.assert_allclose(found, (-1.0) ** np.arange(32) * scipy.special.binom(0.5, np.arange(32)), rtol=1e-14)
    assert found[:5] == (1.0, -1 / 2, -1 / 8, -1 / 16, -5 / 128)


@pytest.mark.parametrize("bands", [1, 2, 5, 32])
def test_the_strategy_begins_as_a_square_root_of_prefix_sums_and_falls(bands):
    column = MECHANISM.column(inverse_square_root(bands), 300)
    root = scipy.special.binom(-0.5, np.arange(bands)) * (-1.0) ** np.arange(bands)
    np.testing.assert_allclose(column[:bands], root, rtol=1e-12)
    assert np.all(np.diff(column) <= 0)
    assert column[-1] >= 0


def error(name, bound, rounds):
    plan = plan_noise(name, rounds, bound)(1.0)
    mechanism = MECHANISMS[name]
    squared = mechanism.sensitivity_squared(plan, [(0, rounds)])
    return np.sqrt(squared * mechanism.prefix_variance(plan).mean())


@pytest.mark.parametrize(("most", "apart"), [(1, 500), (20, 20)])
def test_error_is_below_that_of_trees_and_about_that_of_optimized_bands_or_less(most, apart):
    bound = BoundedParticipation(most, apart)
    found, *others = (error(name, bound, 400) for name in ("bisr", "gaussian", "tree", "tree_honaker"))
    assert found < min(others)
    assert found < 1.05 * error("banded", bound, 400)
    # Where clients take part in every round nothing cancels.
    assert plan_noise("bisr", 100, BoundedParticipation(100, 1))(1.0).coefficients == (1.0,)
