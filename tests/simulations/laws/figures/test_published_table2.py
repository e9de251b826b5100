"""Plans that others have published, recomputed: McKenna et al. 2025, table 2 and figure 5."""

import math

import pytest

from fedlm.fl_core.privacy.accounting.noise_search import Training, least_noise
from fedlm.simulations.laws.figures.table2 import PUBLISHED

TABLE_2 = {(row.examples, row.epsilon): row[2:] for row in PUBLISHED}
TWO_DIGITS = 0.05  # relative error of a number of two digits, at most


@pytest.mark.parametrize("budget", TABLE_2)
def test_table_2_is_consistent_with_itself(budget):
    """Compute is 6 MBST and tokens per parameter BST / M, to the two digits of each factor."""
    compute, _, parameters, steps, batch_size, tokens = TABLE_2[budget]
    assert 6 * parameters * batch_size * 512 * steps == pytest.approx(compute, rel=4 * TWO_DIGITS)
    assert batch_size * 512 * steps / parameters == pytest.approx(tokens, rel=4 * TWO_DIGITS)


def ratio_of(budget):
    """The noise-batch ratio of a row: the lower of Poisson batches and batches in order, as the paper says."""
    from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier

    _, _, _, steps, batch_size, _ = TABLE_2[budget]
    examples, epsilon = budget
    poisson = least_noise(Training(batch_size / examples, int(steps), epsilon, 1e-8))
    in_order = gaussian_noise_multiplier(epsilon, 1e-8) * math.sqrt(math.ceil(batch_size * steps / examples))
    return min(poisson, in_order) / batch_size


@pytest.mark.parametrize(
    ("one", "other"), [((1e7, 64), (1e8, 4)), ((1e8, 64), (1e9, 4)), ((1e6, 64), (1e7, 4)), ((1e5, 64), (1e6, 4))]
)
def test_rows_with_the_same_training_and_noise_have_the_same_loss(one, other):
    assert ratio_of(one) == pytest.approx(ratio_of(other), rel=0.06)
    assert TABLE_2[one][1] == pytest.approx(TABLE_2[other][1], abs=0.011)
