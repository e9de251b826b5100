import math

from fedlm.simulations.data.splits import SPLITS, split_of


def test_splits_are_stable_across_releases():
    for seed, heldout, test in ((0, [4, 27], [5, 15, 29]), (1, [3, 6, 18, 19, 20], [27, 29])):
        found = [split_of(f"client{i}", seed) for i in range(30)]
        assert [i for i in range(30) if found[i] == "heldout"] == heldout
        assert [i for i in range(30) if found[i] == "test"] == test
    assert split_of("ü") == "train"


def test_proportions_of_one_seed_and_of_two():
    # Each share lies within 5 standard deviations: a false alarm once in more than 500,000 seeds, and the
    # seed is fixed.
    n = 20_000
    found, others = ([split_of(f"client-{i}", seed) for i in range(n)] for seed in (7, 8))
    for name, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert abs(found.count(name) - n * share) < 5 * math.sqrt(n * share * (1 - share))
    both = sum(one == other == "test" for one, other in zip(found, others, strict=True))
    assert abs(both - n * 0.01) < 5 * math.sqrt(n * 0.01 * 0.99)
