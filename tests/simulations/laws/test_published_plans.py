"""Plans that others have published, recomputed: McKenna et al. 2025, table 2 and figure 5; the report of VaultGemma."""

import math

import pytest

from fedlm.fl_core.privacy.accounting import account
from fedlm.fl_core.privacy.central_plan import central_plan
from fedlm.fl_core.privacy.noise_search import Training, least_noise
from fedlm.models.base import parameter_count
from fedlm.models.registry import create_model

TABLE_2 = {  # (N, epsilon): compute, loss, parameters, steps, batch size, tokens per parameter
    (1e5, 1): (1.3e16, 7.28, 4.6e6, 1.8e3, 5.1e2, 1.0e2),
    (1e5, 4): (1.1e17, 6.65, 4.6e6, 1.8e3, 4.1e3, 8.5e2),
    (1e5, 16): (2.0e18, 5.60, 1.7e7, 2.7e3, 1.4e4, 1.1e3),
    (1e5, 64): (7.5e18, 4.63, 2.0e7, 6.3e3, 1.9e4, 3.2e3),
    (1e6, 1): (2.8e17, 5.89, 4.6e6, 2.5e3, 8.2e3, 2.3e3),
    (1e6, 4): (8.8e18, 4.62, 1.9e7, 6.5e3, 2.3e4, 4.1e3),
    (1e6, 16): (3.3e19, 3.61, 1.7e7, 1.4e4, 4.6e4, 1.9e4),
    (1e6, 64): (3.2e20, 2.82, 4.9e7, 1.2e4, 1.9e5, 2.2e4),
    (1e7, 1): (3.8e19, 3.73, 1.7e7, 9.6e3, 7.8e4, 2.3e4),
    (1e7, 4): (3.8e20, 2.81, 4.9e7, 1.1e4, 2.2e5, 2.6e4),
    (1e7, 16): (2.0e21, 2.15, 7.0e7, 1.2e4, 7.4e5, 6.7e4),
    (1e7, 64): (4.4e22, 1.66, 3.3e8, 4.9e4, 8.8e5, 6.7e4),
    (1e8, 1): (5.2e21, 2.26, 1.3e8, 5.8e4, 2.2e5, 4.9e4),
    (1e8, 4): (4.4e22, 1.66, 3.3e8, 4.9e4, 8.8e5, 6.7e4),
    (1e8, 16): (1.0e23, 1.32, 3.3e8, 9.3e4, 1.0e6, 1.5e5),
    (1e8, 64): (1.0e23, 1.23, 3.3e8, 1.1e5, 8.8e5, 1.5e5),
    (1e9, 1): (8.5e22, 1.36, 3.3e8, 9.4e4, 8.8e5, 1.3e5),
    (1e9, 4): (1.0e23, 1.23, 3.3e8, 1.1e5, 8.8e5, 1.5e5),
    (1e9, 16): (1.0e23, 1.22, 3.3e8, 1.1e5, 8.8e5, 1.5e5),
    (1e9, 64): (1.2e23, 1.20, 3.3e8, 1.1e5, 1.1e6, 1.8e5),
}
TWO_DIGITS = 0.05  # relative error of a number of two digits, at most


@pytest.mark.parametrize("budget", TABLE_2)
def test_table_2_is_consistent_with_itself(budget):
    """Compute is 6 MBST and tokens per parameter BST / M, to the two digits of each factor."""
    compute, _, parameters, steps, batch_size, tokens = TABLE_2[budget]
    assert 6 * parameters * batch_size * 512 * steps == pytest.approx(compute, rel=4 * TWO_DIGITS)
    assert batch_size * 512 * steps / parameters == pytest.approx(tokens, rel=4 * TWO_DIGITS)


def ratio_of(budget):
    """The noise-batch ratio of a row: the lower of Poisson batches and batches in order, as the paper says."""
    from fedlm.fl_core.privacy.noise_search import gaussian_noise

    _, _, _, steps, batch_size, _ = TABLE_2[budget]
    examples, epsilon = budget
    poisson = least_noise(Training(batch_size / examples, int(steps), epsilon, 1e-8))
    in_order = gaussian_noise(epsilon, 1e-8) * math.sqrt(math.ceil(batch_size * steps / examples))
    return min(poisson, in_order) / batch_size


@pytest.mark.parametrize(
    ("one", "other"), [((1e7, 64), (1e8, 4)), ((1e8, 64), (1e9, 4)), ((1e6, 64), (1e7, 4)), ((1e5, 64), (1e6, 4))]
)
def test_rows_with_the_same_training_and_noise_have_the_same_loss(one, other):
    assert ratio_of(one) == pytest.approx(ratio_of(other), rel=0.06)
    assert TABLE_2[one][1] == pytest.approx(TABLE_2[other][1], abs=0.011)


@pytest.mark.parametrize(
    ("parameters", "steps", "batch_size"), [(335e6, 7500, 1295), (41e6, 5000, 15879), (4.6e6, 2500, 283_061)]
)
def test_baselines_of_figure_5_spend_the_compute(parameters, steps, batch_size):
    assert math.floor(1e19 / (6 * 512 * parameters * steps)) == pytest.approx(batch_size, abs=1)


def vault_gemma(examples):
    plan = central_plan(int(examples), 517_989, 100_000, 0.6143481, 524_288, "zero_out")
    return account(plan, 1.1e-10)


@pytest.mark.long
def test_vault_gemma_has_epsilon_2_at_so_many_sequences():
    found = vault_gemma(9.66e9)
    assert found.epsilon == pytest.approx(2.0, abs=0.015)
    assert found.epsilon_lower <= 2.0
    at_the_inverse_of_delta = vault_gemma(1 / 1.1e-10)
    assert at_the_inverse_of_delta.epsilon == pytest.approx(2.06, abs=0.015)


def test_vault_gemmas_batches_and_compute():
    most = 2048 * 4 * 64  # chips, examples of each at once, accumulated
    padding = 1 - 517_989 / most
    assert padding == pytest.approx(0.012, abs=0.0005)
    parameters = parameter_count(create_model("vaultgemma_1b"))
    assert 6 * parameters * 517_989 * 100_000 * 1024 == pytest.approx(3.31e23, rel=2e-3)
    assert math.log2(0.6143481 / 517_989) == pytest.approx(-19.69, abs=0.01)
