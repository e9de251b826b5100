import jax
import numpy as np
import pytest
from scipy import stats

from fedlm.simulations.generation.sampling import Sampling, choose_tokens, keep_top_k, keep_top_p, sampling_logits

FALSE_ALARMS = 1e-9
"""How often a test that draws fails although nothing is wrong; its seeds are fixed, so that it does always or never."""
PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.25, 0.2])


def drawn(logits, sampling, draws=20_000):
    keys = jax.random.split(jax.random.key(5), draws)
    tokens = choose_tokens(np.tile(np.float32(logits), (draws, 1)), keys, sampling)
    return np.bincount(tokens, minlength=len(logits))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1), PROBABILITIES),
        (Sampling(temperature=0.5), PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        (Sampling(temperature=2), PROBABILITIES**0.5 / (PROBABILITIES**0.5).sum()),
        (Sampling(temperature=1, top_k=2), np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        (Sampling(temperature=1, top_p=0.5), np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
        (Sampling(temperature=1, top_p=0.66), np.array([0, 0.4, 0, 0.25, 0.2]) / 0.85),
        # Of the three that are left the first two have 0.76 of the probability.
        (Sampling(temperature=1, top_k=3, top_p=0.7), np.array([0, 0.4, 0, 0.25, 0]) / 0.65),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling, expected):
    counts = drawn(np.log(PROBABILITIES), sampling)
    possible = expected > 0
    assert (counts[~possible] == 0).all()
    _, chance = stats.chisquare(counts[possible], expected[possible] * counts.sum())
    assert chance > FALSE_ALARMS


def test_temperature_0_takes_the_first_of_the_most_likely():
    logits = np.array([[1, 3, 3, 0], [5, 1, 1, 1]], np.float32)
    tokens = choose_tokens(logits, jax.random.split(jax.random.key(0), 2), Sampling())
    assert tokens.tolist() == [1, 0]
    assert tokens.dtype == np.int32


def test_the_smallest_temperature_and_the_largest_logits_are_numbers():
    found = sampling_logits(np.array([[3e38, -3e38, 2.9e38]], np.float32), Sampling(temperature=1e-39))
    assert found.tolist() == [[0, -np.inf, -np.inf]]
    assert np.isfinite(sampling_logits(np.array([[3.0, 1.0]], np.float32), Sampling(temperature=1e300))).all()


def test_ties_stay_together_and_the_rest_is_as_it_was():
    logits = np.array([2, 1, 2, 1, 0], np.float32)
    assert np.isfinite(keep_top_k(logits, 1)).tolist() == [True, False, True, False, False]
    assert np.isfinite(keep_top_k(logits, 3)).tolist() == [True, True, True, True, False]
    for p in (0.1, 1e-300):
        assert np.isfinite(keep_top_p(logits, p)).tolist() == [True, False, True, False, False]
    # Keeping everything changes nothing.
    logits = np.log(np.float32(PROBABILITIES))
    np.testing.assert_array_equal(keep_top_k(logits, 99), logits)
    np.testing.assert_array_equal(keep_top_p(logits, 1.0), logits)
