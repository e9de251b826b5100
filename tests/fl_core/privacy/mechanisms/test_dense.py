"""Dense matrices: what they are optimized for, and the reference that their sensitivity is held to."""

import itertools

import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import account, sensitivity_squared
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise
from tests.fl_core.privacy.mechanisms.noise_matrices import mixing_matrix, plan_of

ROUNDS = 12


def strategy_of(coefficients, rounds, bands):
    """C, entry by entry."""
    matrix, left = np.zeros((rounds, rounds)), list(coefficients)
    for row in range(rounds):
        for column in range(max(0, row - bands + 1), row + 1):
            matrix[row, column] = left.pop(0)
    assert not left
    return matrix


def largest(matrix, most, apart):
    """The most that one client adds up to, over all patterns, in float64; coefficients are not negative."""
    return max(
        np.sum(matrix[:, list(pattern)].sum(axis=1) ** 2)
        for count in range(1, most + 1)
        for pattern in itertools.combinations(range(len(matrix)), count)
        if all(later - earlier >= apart for earlier, later in itertools.pairwise(pattern))
    )


def test_noise_is_multiplied_by_the_inverse_of_the_strategy():
    plan = plan_of("dense")
    mixing, strategy = mixing_matrix(plan), strategy_of(plan.coefficients, plan.rounds, 4)
    np.testing.assert_allclose(mixing[:, : plan.rounds] @ strategy, np.eye(plan.rounds), atol=1e-9)
    assert not mixing[:, plan.rounds :].any()


@pytest.mark.long
@pytest.mark.parametrize(("most", "apart", "bands"), [(1, 1, ROUNDS), (3, 4, 4)])
def test_an_optimized_matrix_has_columns_of_norm_1_and_less_error_than_a_banded_one(most, apart, bands):
    bound = BoundedParticipation(most, apart)
    errors = []
    for name in ("dense", "banded"):
        plan = plan_noise(name, ROUNDS, bound)(1.0)
        errors.append(np.mean(MECHANISMS[name].prefix_variance(plan)) * sensitivity_squared(plan, [(0, ROUNDS)]))
        if name == "dense":
            strategy = strategy_of(plan.coefficients, ROUNDS, bands)
            np.testing.assert_allclose(np.linalg.norm(strategy, axis=0), 1, rtol=1e-6)
            assert account(plan, 1e-6).sensitivity == pytest.approx(np.sqrt(most), rel=1e-6)
    assert errors[0] < errors[1]


@pytest.mark.parametrize(
    ("coefficients", "message"),
    [((1.0,) * 4, "no bands of 3 rounds"), ((1.0, 0.5, 0.0, 0.5, 1.0), "above 0"), ((np.inf, 1.0, 1.0), "finite")],
)
def test_coefficients_that_are_no_strategy_are_refused(coefficients, message):
    with pytest.raises(ConfigurationError, match=message):
        PrivacyPlan("dense", 3, 1.0, BoundedParticipation(1), coefficients=coefficients)


@pytest.mark.parametrize(
    ("most", "apart", "loose"), [(1, 1, 1.0), (2, 4, 1.0), (3, 5, 1.0), (2, 1, 1.3), (3, 2, 1.3), (4, 3, 1.3)]
)
def test_sensitivity_is_exact_for_no_more_bands_than_the_separation_and_else_bounded(most, apart, loose):
    plan = plan_of("dense", ROUNDS, participation=BoundedParticipation(most, apart))
    expected = largest(strategy_of(plan.coefficients, ROUNDS, 4), most, apart)
    assert expected * (1 - 1e-12) <= sensitivity_squared(plan, [(0, ROUNDS)]) <= loose * expected * (1 + 1e-12)
