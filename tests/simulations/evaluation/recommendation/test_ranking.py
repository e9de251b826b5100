import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.simulation.peers.recommendation_metrics import ITEMS, TOP_K, draw
from fedlm.models.base import language_model
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import BOS_ID
from fedlm.simulations.evaluation.recommendation import ranking
from fedlm.simulations.evaluation.recommendation.metrics import Places, describe_ranking, hits
from fedlm.simulations.evaluation.recommendation.ranking import (
    FIRST_ITEM,
    model_scorer,
    rank_users,
)
from tests.simulations.data.recommendation.item_stores import import_sequences, made_up_sequences

LENGTH = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return import_sequences(tmp_path_factory.mktemp("items"), made_up_sequences(60, 30))


def ranked(store, scorer, split="test", users=None, **options):
    """Rank items for some users, or all of a split."""
    clients = store.split(split)
    users = np.arange(clients.num_clients) if users is None else users
    return rank_users(scorer, clients, users, LENGTH, vocabulary_size=store.vocabulary_size, top_k=5, **options)


def bigram_scorer(store, seed=0, levels=5):
    """Scores by the last item alone; of few levels, so that there are ties."""
    size = store.vocabulary_size
    table = np.random.default_rng(seed).integers(0, levels, (size, size)).astype(np.float32)
    model = language_model("bigrams", size, lambda key: jnp.asarray(table), lambda params, tokens: params[tokens])
    return table, model_scorer(model, jnp.asarray(table))


def by_hand(store, split, table, keep_history, negatives=None):
    """Yield (better, equal, candidates) of each user."""
    clients = store.split(split)
    for user in range(clients.num_clients):
        *history, target = clients.client(user).example(0).tolist()
        scores = table[history[-1] if LENGTH > 1 else BOS_ID]
        others = set(range(FIRST_ITEM, store.vocabulary_size)) - {target}
        if not keep_history:
            others -= set(history)
        better = sum(scores[item] > scores[target] for item in others)
        equal = sum(scores[item] == scores[target] for item in others)
        yield better, equal, len(others) + 1


@pytest.mark.parametrize(
    ("split", "keep_history", "rows"), [("heldout", True, 7), ("test", False, 64), ("test", True, 1)]
)
def test_places_are_those_of_a_loop(store, split, keep_history, rows, monkeypatch):
    monkeypatch.setattr(ranking, "rows_per_device", lambda: rows)
    table, scorer = bigram_scorer(store)
    users = np.arange(store.split(split).num_clients)
    found = ranked(store, scorer, split, users, sampled_negatives=None, keep_history=keep_history)
    expected = list(by_hand(store, split, table, keep_history))
    assert list(zip(*found.places, strict=True)) == expected
    targets = [store.split(split).client(user).example(0)[-1] for user in users]
    assert found.targets.tolist() == targets


def test_the_best_are_never_special_nor_of_the_history(store):
    table, scorer = bigram_scorer(store, levels=10**6)
    clients, found = store.split("test"), ranked(store, scorer)
    for user in range(clients.num_clients):
        history = clients.client(user).example(0)[:-1]
        scores = table[history[-1]].copy()
        scores[:FIRST_ITEM] = scores[history] = -1
        assert found.top[user].tolist() == np.argsort(-scores)[:5].tolist()


def test_sampled_negatives_are_items_that_the_user_has_not_met(store):
    known = np.array([5, 6, 9])
    size = 14  # items 4 to 13
    drawn = [ranking._negatives(known, size, 4, seed=0, user=user) for user in range(400)]
    left = {4, 7, 8, 10, 11, 12, 13}
    assert all(len(set(one.tolist())) == 4 and set(one.tolist()) <= left for one in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=size)[sorted(left)]
    # Each of 7 items is drawn with probability 4 / 7 for each of 400 users: 229 +- 9.9. A false alarm, beyond 5
    # standard deviations of one of seven items, has a probability below 1e-5; the seed is fixed.
    assert np.abs(counts - 400 * 4 / 7).max() < 5 * (400 * 4 / 7 * 3 / 7) ** 0.5
    assert sorted(ranking._negatives(known, size, 100, seed=0, user=0).tolist()) == sorted(left)


@pytest.mark.parametrize("keep_history", [True, False])
def test_all_negatives_are_the_full_ranking(store, keep_history):
    _, scorer = bigram_scorer(store)
    users = np.arange(store.split("test").num_clients)
    full, sampled, few = (
        ranked(store, scorer, keep_history=keep_history, sampled_negatives=negatives) for negatives in (None, 1000, 3)
    )
    assert list(zip(*full.places, strict=True)) == list(zip(*sampled.places, strict=True))
    assert few.places.candidates.tolist() == [4] * len(users)
    assert (few.places.better <= full.places.better).all()
    again = ranked(store, scorer, users=users[5:], keep_history=keep_history, sampled_negatives=3)
    assert again.places.better.tolist() == few.places.better[5:].tolist(), "a user's negatives are its own"


def test_scores_that_are_not_finite_stand_last(store):
    table = jnp.full((store.vocabulary_size,) * 2, jnp.nan)
    model = language_model("broken", len(table), lambda key: table, lambda params, tokens: params[tokens])
    found = ranked(store, model_scorer(model, table))
    assert hits(found.places, 1).max() == 0.0
    assert (found.places.better == found.places.candidates - 1).all()
    assert not found.top.any()


@pytest.mark.long
@pytest.mark.parametrize("name", ["gru4rec_tiny", "sasrec_tiny"])
def test_a_model_ranks_by_its_logits_after_the_last_item(store, name):
    model = create_model(name, store.vocabulary_size)
    params = model.init(jax.random.key(1))
    clients, users = store.split("test"), np.arange(12)
    found = ranked(store, model_scorer(model, params), users=users, sampled_negatives=None, keep_history=True)
    examples = [clients.client(user).example(0).tolist() for user in users]
    read = [[BOS_ID, *history[-(LENGTH - 1) :]] for *history, _ in examples]
    logits = np.asarray(jax.jit(model.apply)(params, jnp.array([(row + [0] * LENGTH)[:LENGTH] for row in read])))
    for user, row, (*_, target) in zip(users, read, examples, strict=True):
        scores = logits[user, len(row) - 1, FIRST_ITEM:]
        assert found.places.better[user] == (scores > scores[target - FIRST_ITEM]).sum()


@pytest.mark.parametrize("candidates", ["all", "unknown"])
def test_scores_are_those_of_recbole(candidates):
    golden = json.loads((Path(__file__).parent / "recbole_scores.json").read_text())[candidates]
    scores, known, targets = draw()
    scores = np.pad(scores, ((0, 0), (FIRST_ITEM, 0)), constant_values=9e9)  # of special tokens
    hidden = ranking.padded_rows([FIRST_ITEM + np.flatnonzero(row & (candidates == "unknown")) for row in known])
    found = ranking._find_places(scores, FIRST_ITEM + targets[:, None], hidden, top_k=max(TOP_K))
    *places, top = map(np.asarray, found)
    described = describe_ranking(Places(*places), targets, np.ones(ITEMS, int), TOP_K)["scores"]
    ours = {}
    for k in TOP_K:
        ours[f"hit@{k}"], ours[f"ndcg@{k}"] = (described[f"{name}@{k}"]["value"] for name in ("hit", "ndcg"))
        ours[f"itemcoverage@{k}"] = len(np.unique(top[:, :k])) / ITEMS
    assert ours == pytest.approx(golden, abs=1e-9)
