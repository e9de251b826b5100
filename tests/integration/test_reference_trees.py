"""Our trees against those of TensorFlow Privacy: the same noise from the same draws, and the same sensitivity."""

import json

import numpy as np
import pytest

from fedlm.fl_core.privacy.mechanisms.tree_sensitivity import tree_sensitivity_squared
from tests.fl_core.privacy.mechanisms.noise_matrices import mixing_matrix, plan_of

pytestmark = pytest.mark.reference
ROUNDS = 30
CASES = [(8, 2, 0), (8, 2, 3), (13, 3, 2), (15, 3, 0), (16, 4, 3), (33, 3, 6)]


@pytest.fixture(scope="module")
def theirs(reference_python):
    return reference_python("tree_noise.py", ROUNDS, json.dumps(CASES))


@pytest.mark.parametrize("mechanism", ["tree", "tree_honaker"])
def test_noise_of_prefix_sums_has_the_same_covariance(theirs, mechanism):
    ours = np.tri(ROUNDS) @ mixing_matrix(plan_of(mechanism, ROUNDS))
    matrix = np.array(theirs[mechanism])
    np.testing.assert_allclose(ours @ ours.T, matrix @ matrix.T, atol=1e-4)


def test_noise_of_rounds_has_the_same_covariance(theirs):
    ours, matrix = mixing_matrix(plan_of("tree", ROUNDS)), np.array(theirs["residual"])
    np.testing.assert_allclose(ours @ ours.T, matrix @ matrix.T, atol=1e-5)


def test_sensitivity_is_the_same(theirs):
    ours = [tree_sensitivity_squared([rounds], most, between + 1) / 2 for rounds, most, between in CASES]
    assert ours == pytest.approx(theirs["zcdp"])
