import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlm.simulations.data.recommendation.filtering import filter_by_count

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60)


def naive(pairs, least, iterated):
    """Count by hand, one user or item at a time where it goes on."""
    left = list(range(len(pairs)))
    while True:
        users = [pairs[index][0] for index in left]
        items = [pairs[index][1] for index in left]
        few = [index for index in left if users.count(pairs[index][0]) < least or items.count(pairs[index][1]) < least]
        if not few:
            return left
        if not iterated:
            return [index for index in left if index not in few]
        gone = pairs[few[0]]  # any one of them alone: the k-core does not depend on the order
        side = 0 if users.count(gone[0]) < least else 1
        left = [index for index in left if pairs[index][side] != gone[side]]


@given(pairs=PAIRS, least=st.integers(1, 5), iterated=st.booleans())
def test_what_is_left_is_what_counting_by_hand_leaves(pairs, least, iterated):
    users, items = (np.array([pair[side] for pair in pairs], np.int32) for side in (0, 1))
    kept = filter_by_count(users, items, least, iterated)
    assert np.flatnonzero(kept).tolist() == naive(pairs, least, iterated)
