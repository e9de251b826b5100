import json

import numpy as np
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.describing import description
from fedlm.simulations.data.describing.description import count_split, count_store, describe
from fedlm.simulations.data.describing.sampling import sample_clients
from fedlm.simulations.data.store.split_writer import SplitWriter
from tests.simulations.data.made_up_store import import_made_up, made_up_texts


def test_what_is_described_agrees_with_numpy(tmp_path, monkeypatch):
    monkeypatch.setattr(description, "RANKS", (1, 3, 7, 8))
    store = import_made_up(tmp_path / "s", [*made_up_texts(), ClientText("blank", [])])
    described = json.loads(json.dumps(describe(store)))
    assert described["skipped"] == {"text without a sentence": 1}
    assert described["fingerprint"] == store.tokenizer.fingerprint
    for name, found in described["splits"].items():
        split = store.split(name)
        clients = [split.client(index) for index in range(split.num_clients)]
        tokens, lengths = (np.concatenate([getattr(one, part) for one in clients]) for part in ("values", "lengths"))
        assert (found["clients"], found["examples"], found["tokens"]) == (len(clients), len(lengths), len(tokens))
        for key, numbers in (("examples_per_client", split.num_examples), ("tokens_per_example", lengths)):
            expected = {name: getattr(np, name)(numbers) for name in ("min", "median", "mean", "max")}
            assert found[key] == pytest.approx(expected | {"p90": np.quantile(numbers, 0.9)})
        known = tokens[tokens != OOV_ID]
        ranked = np.sort(np.unique(known, return_counts=True)[1])[::-1]
        assert found["oov_share"] == pytest.approx(np.mean(tokens == OOV_ID))
        assert 0 < found["oov_share"] < 1
        assert found["coverage"] == pytest.approx(len(known) / len(tokens))
        assert found["vocabulary_used"] == len(ranked) == 7
        # There are 7 entries, so nothing is said of 8.
        by_rank = {str(rank): pytest.approx(ranked[:rank].sum() / len(tokens)) for rank in (1, 3, 7)}
        assert found["coverage_by_rank"] == by_rank
        by_length = {str(cut): pytest.approx(np.mean(lengths + 2 > cut + 1)) for cut in (10, 20, 30, 50)}
        assert found["truncated_share_by_length"] == by_length
        assert found["truncated_share"] == by_length[str(found["truncation_length"])]


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
    with pytest.raises(DataError, match=r"split test has no client\. Choose another split"):
        sample_clients(store, "test", 3, 2)


def test_samples_are_of_clients_that_there_are(tmp_path):
    store = import_made_up(tmp_path / "s")
    sentences = {text.client_id: text.sentences for text in made_up_texts()}
    known = set(store.tokenizer._tokenizer.get_vocab())
    for sample in sample_clients(store, "train", 4, 3, seed=1):
        expected = sentences[sample.client_id]
        assert sample.num_examples == len(expected)
        spelled = [" ".join(word if word in known else "[OOV]" for word in one.split()) for one in expected[:3]]
        assert sample.examples == spelled
    name, first = store.split("heldout").client_ids[1], store.split("train").client_ids[0]
    (sample,) = sample_clients(store, "heldout", 3, 2, client_id=name)
    assert sample.client_id == name
    with pytest.raises(DataError, match=f"split train has no client '{name}'. It is in split heldout"):
        sample_clients(store, "train", 3, 2, client_id=name)
    with pytest.raises(DataError, match=f"split train has no client 'nobody'. Its clients are named like '{first}', "):
        sample_clients(store, "train", 3, 2, client_id="nobody")
