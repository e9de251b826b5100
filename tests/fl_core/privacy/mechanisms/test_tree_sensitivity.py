import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.tree_sensitivity import tree_sensitivity_squared


@pytest.mark.parametrize(
    ("rounds", "most", "apart", "expected"),
    [(8, 1, 1, 4), (8, 2, 1, 14), (8, 2, 4, 10), (13, 3, 3, 20), (15, 3, 1, 26), (16, 4, 4, 36)],
)
def test_published_values(rounds, most, apart, expected):
    """Those of tensorflow-privacy, which counts the rounds between two participations: one less than ours."""
    assert tree_sensitivity_squared([rounds], most, apart) == expected


def by_enumeration(trees, most, apart, completed):
    nodes, start = [], 0
    for rounds in trees:
        height = (rounds - 1).bit_length()
        for level in range(height + 1):
            for place in range(1 << height - level):
                low, high = place << level, (place + 1) << level
                if high <= rounds or completed:
                    nodes.append(range(start + low, start + min(high, rounds)))
        start += rounds
    patterns = (
        rounds
        for count in range(1, most + 1)
        for rounds in itertools.combinations(range(sum(trees)), count)
        if all(later - earlier >= apart for earlier, later in itertools.pairwise(rounds))
    )
    return max(sum(sum(one in node for one in rounds) ** 2 for node in nodes) for rounds in patterns)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_equals_the_maximum_over_all_patterns(trees, most, apart, completed):
    assert tree_sensitivity_squared(trees, most, apart, completed) == by_enumeration(trees, most, apart, completed)


def test_a_client_in_every_round():
    """All nodes of 2^h leaves, by hand: the sum over levels of 2^(h - level) * 4^level."""
    assert tree_sensitivity_squared([1024], None, 1) == sum(2 ** (10 - level) * 4**level for level in range(11))


@pytest.mark.parametrize(("most", "apart"), [(0, 1), (1, 0)])
def test_impossible_bounds_are_refused(most, apart):
    with pytest.raises(ConfigurationError, match="must be at least 1"):
        tree_sensitivity_squared([4], most, apart)
