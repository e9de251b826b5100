import numpy as np
import pytest
from scipy import stats

from fedlm.simulations.evaluation.memorization.extraction import edit_distances, extraction_rates, rate, rate_difference


def brute_force(one, other):
    """Levenshtein distance by its recurrence."""
    table = np.zeros((len(one) + 1, len(other) + 1), int)
    table[:, 0], table[0] = np.arange(len(one) + 1), np.arange(len(other) + 1)
    for row, left in enumerate(one, 1):
        for column, right in enumerate(other, 1):
            replaced = table[row - 1, column - 1] + (left != right)
            table[row, column] = min(replaced, table[row - 1, column] + 1, table[row, column - 1] + 1)
    return table[-1, -1]


@pytest.mark.parametrize(("suffix", "vocabulary"), [(1, 3), (7, 3), (30, 5), (70, 70_000)])
def test_edit_distances_are_those_of_the_recurrence(suffix, vocabulary):
    rng = np.random.default_rng(suffix)
    one = rng.integers(0, vocabulary, (20, suffix), dtype=np.int32)
    other = np.where(rng.random(one.shape) < 0.3, rng.integers(0, vocabulary, one.shape), one).astype(np.int32)
    other[::3] = np.roll(other[::3], 1, axis=1)
    expected = [brute_force(*pair) / suffix for pair in zip(one, other, strict=True)]
    np.testing.assert_array_equal(edit_distances(one, other), expected)
    assert 0 < np.mean(expected) < 1


def test_rates_count_equal_and_almost_equal_suffixes():
    true = np.arange(200, dtype=np.int32).reshape(10, 20)
    found = true.copy()
    found[0, :2] = -1  # 2 of 20 edits are within 10 %
    found[1, :3] = -1  # 3 are not
    found[2] = np.roll(true[2], 1)  # moved by one: an insertion and a deletion
    found[3] = true[3, ::-1]
    rates = extraction_rates(found, true)
    assert (rates["exact"]["count"], rates["approximate"]["count"]) == (6, 8)
    assert rates["exact"]["of"] == 10
    assert rates["exact"]["rate"] == 0.6


def test_intervals_cover_as_often_as_they_say():
    """Newcombe's Table II has 56/70 and 48/80: 0.2 with (0.0524, 0.3339)."""
    found = rate_difference(rate(56, 70), rate(48, 80))
    np.testing.assert_allclose(
        [found[name] for name in ("difference", "low", "high")], [0.2, 0.0524, 0.3339], atol=5e-5
    )
    # Wilson's interval holds the shares that a score test does not refuse.
    interval = rate(3, 40)
    for share in (interval["low"], interval["high"]):
        score = (3 / 40 - share) / np.sqrt(share * (1 - share) / 40)
        assert abs(score) == pytest.approx(stats.norm.isf(0.025))
    assert rate(0, 100)["low"] == 0
    assert 0.03 < rate(0, 100)["high"] < 0.04
