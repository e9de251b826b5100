import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedlm.fl_core.privacy.origins.private_words import (
    COUNT_NORM,
    MOST_TRAINING_WORDS,
    contribution,
    noisy_words,
    word_weight,
)
from fedlm.fl_core.privacy.origins.vocabulary_origin import PrivateVocabulary
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary

WORDS = st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, 10**9), max_size=40)


def norm_squared(vector):
    return sum(value**2 for value in vector.values())


@given(st.text(max_size=5), WORDS, st.integers(1, 50))
def test_a_client_adds_no_more_than_the_norm(client, words, most):
    added = contribution(client, words, most)
    assert norm_squared(added) <= COUNT_NORM**2
    assert len(added) == min(len(words), most)
    assert set(added) <= set(words)
    assert all(value > 0 for value in added.values())
    left_out = [words[word] for word in words if word not in added]
    assert not left_out or max(left_out) <= min(words[word] for word in added)


def test_a_client_of_very_many_words_adds_no_more_than_others():
    words = {f"word{number}": 1 + number % 7 for number in range(100_000)}
    added = contribution("ann", words, 500)
    assert len(added) == 500
    assert norm_squared(added) <= COUNT_NORM**2
    assert {words[word] for word in added} == {7}
    assert set(added) != set(contribution("ben", words, 500)), "ties are not broken in the same way for all"
    assert added == contribution("ann", dict(reversed(words.items())), 500)


@pytest.mark.parametrize(("epsilon", "delta", "most"), [(1.0, 1e-6, 50), (8.0, 1e-9, 500), (0.3, 1e-12, 7)])
def test_words_of_one_client_reach_the_threshold_with_the_stated_probability_at_most(epsilon, delta, most):
    plan = plan_vocabulary(epsilon, delta, most)
    deviation, threshold = plan.noise_multiplier * COUNT_NORM, plan.threshold * COUNT_NORM
    chances = [t * stats.norm.sf(threshold - 0.5 - word_weight(t), scale=deviation) for t in range(1, most + 1)]
    assert max(chances) <= plan.threshold_delta
    assert max(chances) > 0.99 * plan.threshold_delta, "no more is thrown away than must be"


def test_a_word_of_one_client_is_as_good_as_never_kept():
    plan = plan_vocabulary(4.0, 1e-6, 1)
    below = random.Random(1).randrange
    # Seen once in 500 with probability 3e-4 at most.
    assert all("secret" not in noisy_words({"secret": COUNT_NORM}, plan, below) for _ in range(500))
    assert "common" in noisy_words({"common": 100 * COUNT_NORM}, plan, below)


def largest_difference(plan, epsilon, runs, seed):
    """Estimate P'[T] - e^epsilon P[T] of the likelier outputs T where a client adds all it may to a word's count, with
    its standard error."""
    below = random.Random(seed).randrange
    near = round(plan.threshold * COUNT_NORM) + 20 * COUNT_NORM
    # Noise moves a count across this where the two are exp(epsilon) apart in likelihood.
    cut = near + COUNT_NORM / 2 + epsilon * plan.noise_multiplier**2 * COUNT_NORM
    scale = COUNT_NORM // 1000

    def share(count):
        seen = [noisy_words({"word": count}, plan, below)["word"] >= cut / scale for _ in range(runs)]
        return float(np.mean(seen))

    without, with_client = share(near), share(near + COUNT_NORM)
    error = math.sqrt((with_client * (1 - with_client) + math.exp(2 * epsilon) * without * (1 - without)) / runs)
    return with_client - math.exp(epsilon) * without, error


def test_counts_differ_no_more_than_epsilon_and_delta_say():
    # False alarms of 5 standard errors: 3e-7 for fair coins, none or always with these.
    epsilon = 0.5
    plan = plan_vocabulary(epsilon, 0.2, 1)
    difference, error = largest_difference(plan, epsilon, 4000, seed=0)
    assert abs(difference - plan.delta / 2) < 5 * error
    too_little = PrivateVocabulary(epsilon, 0.2, plan.noise_multiplier / 2, plan.threshold, 0.1, 1)
    difference, error = largest_difference(too_little, epsilon, 4000, seed=0)
    assert difference > plan.delta / 2 + 5 * error


def test_counts_are_scaled_down_and_keep_their_order():
    plan = plan_vocabulary(8.0, 1e-6, 10)
    counts = noisy_words({"the": 10**12, "of": 10**11, "rare": 10**8}, plan)
    assert counts["the"] > counts["of"] > counts["rare"] >= 1
    assert counts.total() <= MOST_TRAINING_WORDS + 3
