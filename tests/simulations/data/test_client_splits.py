import math

from hypothesis import given
from hypothesis import strategies as st

from fedlm.simulations.data.splits import SPLITS, split_of


def test_splits_are_stable_across_releases():
    ids = [f"client{i}" for i in range(30)]
    assert [id_ for id_ in ids if split_of(id_, 0) == "heldout"] == ["client4", "client27"]
    assert [id_ for id_ in ids if split_of(id_, 0) == "test"] == ["client5", "client15", "client29"]
    assert [id_ for id_ in ids if split_of(id_, 1) == "heldout"] == [
        "client3",
        "client6",
        "client18",
        "client19",
        "client20",
    ]
    assert [id_ for id_ in ids if split_of(id_, 1) == "test"] == ["client27", "client29"]
    assert split_of("ü") == "train"


def test_proportions():
    # Each share lies within 5 standard deviations: a false alarm once in more than 500,000 seeds, and the
    # seed is fixed.
    n = 20_000
    found = [split_of(f"client-{i}", seed=7) for i in range(n)]
    for name, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert abs(found.count(name) - n * share) < 5 * math.sqrt(n * share * (1 - share))


def test_seeds_split_independently():
    n = 20_000
    both = sum(split_of(f"c{i}", 0) == split_of(f"c{i}", 1) == "test" for i in range(n))
    assert abs(both - n * 0.01) < 5 * math.sqrt(n * 0.01 * 0.99)


@given(st.text(), st.integers())
def test_any_client_has_a_split(client_id, seed):
    assert split_of(client_id, seed) in SPLITS
    assert split_of(client_id, seed) == split_of(client_id, seed)
