"""The published data set, imported and scored by popularity, as docs/recommendation.md says."""

from pathlib import Path

import numpy as np
import pytest

from fedlm.simulations.data.recommendation.importing import import_recommendation
from fedlm.simulations.data.recommendation.settings import RecommendationSettings
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.recommendation.measuring import RankingSettings, choose_users, score_ranking
from fedlm.simulations.evaluation.recommendation.ranking import FIRST_ITEM, popularity_scorer
from tests.simulations.data.recommendation.item_stores import read_sequences

ROOT = Path(__file__).parents[4]
VIDEO = ROOT.parent / "shared/data/recommendation/Video.txt"


@pytest.mark.long
@pytest.mark.skipif(not VIDEO.exists(), reason="needs ../shared/data/recommendation/Video.txt")
@pytest.mark.parametrize("validation_item", [True, False])
def test_amazon_games_have_their_size_and_popularity_its_scores(tmp_path, validation_item):
    source = Interactions((VIDEO,), format="pairs")
    settings = RecommendationSettings(min_interactions=1, validation_item=validation_item)
    summary = import_recommendation(source, tmp_path / "games", settings)
    store = TokenStore.open(tmp_path / "games")
    assert store.vocabulary_size - FIRST_ITEM == 23_715
    assert summary.header.splits["train"].clients == 31_013
    if validation_item:
        sequences: dict[str, list[str]] = {}
        for line in VIDEO.read_text().splitlines():
            user, item = line.split()
            sequences.setdefault(user, []).append(item)
        assert read_sequences(store, "test") == {user: items for user, items in sequences.items() if len(items) >= 3}
    page = (ROOT / "docs/recommendation.md").read_text()
    scorer, users = popularity_scorer(np.zeros(store.vocabulary_size)), choose_users(store, "test", None)
    for negatives, candidates in {None: "all items", 100: "100 sampled negatives"}.items():
        if negatives and not validation_item:
            continue
        ranking = RankingSettings(top_k=(10,), sampled_negatives=negatives)
        found, _ = score_ranking(scorer, store, "test", users, length=50, settings=ranking)
        scores = found["popularity_baseline"]["scores"]
        without = "" if validation_item else f", without a validation item ({len(users):,} users)"
        hit, gain = (100 * scores[name]["value"] for name in ("hit@10", "ndcg@10"))
        row = f"| {candidates}{without} | {hit:.2f} | {gain:.2f} |"
        assert row in page
