import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.simulations.evaluation.recommendation.metrics import (
    GROUPS,
    Places,
    describe_ranking,
    gains,
    hits,
    popularity_groups,
)

SCORES = st.lists(st.integers(0, 3), min_size=1, max_size=6)


def places_of(scores, target):
    scores = np.asarray(scores)
    better, equal = (scores > scores[target]).sum(), (scores == scores[target]).sum() - 1
    return Places(*(np.array([value]) for value in (better, equal, len(scores))))


@given(scores=SCORES, target=st.integers(0, 5), k=st.integers(1, 7))
def test_ties_are_the_mean_over_all_orders(scores, target, k):
    target %= len(scores)
    ranks = []
    for order in itertools.permutations(range(len(scores))):
        # A stable sort by score leaves those of equal score in this order.
        ranked = sorted(order, key=lambda item: -scores[item])
        ranks.append(1 + ranked.index(target))
    places = places_of(scores, target)
    assert hits(places, k)[0] == pytest.approx(np.mean([rank <= k for rank in ranks]))
    assert gains(places, k)[0] == pytest.approx(np.mean([1 / np.log2(1 + rank) if rank <= k else 0 for rank in ranks]))


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_groups_are_thirds_of_what_was_trained_on(counts):
    counts = np.array(counts)
    groups = popularity_groups(counts)
    total = counts.sum()
    for item, count in enumerate(counts):
        before = counts[counts > count].sum()
        if count == 0:
            assert groups[item] == 2
        else:
            assert groups[item] == (0 if 3 * before < total else 1 if 3 * before < 2 * total else 2)


def test_groups_add_up_to_all():
    rng = np.random.default_rng(0)
    interactions, targets = rng.geometric(0.02, 50), rng.integers(0, 50, 300)
    places = Places(rng.integers(0, 40, 300), rng.integers(0, 3, 300), np.full(300, 50))
    found = describe_ranking(places, targets, interactions, (1, 10))
    parts = found["by_popularity"]
    assert [part["group"] for part in parts] == list(GROUPS)
    assert sum(part["items"] for part in parts) == 50
    assert sum(part["users"] for part in parts) == 300
    for metric, score in found["scores"].items():
        whole = sum(part["users"] * (part["scores"][metric]["value"] or 0) for part in parts) / 300
        assert score["value"] == pytest.approx(whole)
    values = hits(places, 10)
    assert found["scores"]["hit@10"]["standard_error"] == pytest.approx(values.std(ddof=1) / 300**0.5)
    assert parts[0]["fewest"] >= parts[1]["most"] >= parts[1]["fewest"] >= parts[2]["most"]
