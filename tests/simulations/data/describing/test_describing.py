import json

import numpy as np
import pytest

from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.describing import description
from fedlm.simulations.data.describing.description import count_split, count_store, describe
from fedlm.simulations.data.store.writer import SplitWriter
from tests.simulations.data.made_up_store import import_made_up


def tokens_of(split):
    return np.concatenate([split.client(i).values for i in range(split.num_clients)])


def lengths_of(split):
    return np.concatenate([split.client(i).lengths for i in range(split.num_clients)])


def test_coverage_agrees_with_numpy(tmp_path, monkeypatch):
    monkeypatch.setattr(description, "RANKS", (1, 3, 7, 8))
    store = import_made_up(tmp_path / "s")
    for name, found in json.loads(json.dumps(describe(store)))["splits"].items():
        tokens = tokens_of(store.split(name))
        known = tokens[tokens != OOV_ID]
        _, counts = np.unique(known, return_counts=True)
        ranked = np.sort(counts)[::-1]
        assert 0 < found["oov_share"] < 1
        assert found["coverage"] == pytest.approx(len(known) / len(tokens))
        assert found["vocabulary_used"] == len(ranked) == 7
        # There are 7 entries, so nothing is said of 8.
        assert found["coverage_by_rank"] == {
            str(rank): pytest.approx(ranked[:rank].sum() / len(tokens)) for rank in (1, 3, 7)
        }


def test_truncation_agrees_with_numpy(tmp_path):
    store = import_made_up(tmp_path / "s")
    for name, found in describe(store)["splits"].items():
        lengths = lengths_of(store.split(name))
        expected = {str(cut): pytest.approx(np.mean(lengths + 2 > cut + 1)) for cut in (10, 20, 30, 50)}
        assert found["truncated_share_by_length"] == expected
        assert found["truncated_share"] == found["truncated_share_by_length"][str(found["truncation_length"])]


def test_counts_do_not_depend_on_record_batches(tmp_path, monkeypatch):
    whole = count_store(import_made_up(tmp_path / "a"))
    monkeypatch.setattr(SplitWriter.__init__, "__defaults__", (5, 300))
    store = import_made_up(tmp_path / "b")
    assert store.split("train").num_batches > 5
    for name, counts in whole.items():
        for one, other in zip(counts, count_split(store.split(name), store.vocabulary_size), strict=True):
            assert np.array_equal(one, other)


def test_empty_splits_have_no_shares(tmp_path):
    store = import_made_up(tmp_path / "s", [ClientText("os", ["a few words"])])
    empty = describe(store)["splits"]["test"]
    assert empty["coverage"] is empty["truncated_share"] is empty["truncated_share_by_length"]["10"] is None
    assert empty["vocabulary_used"] == 0
