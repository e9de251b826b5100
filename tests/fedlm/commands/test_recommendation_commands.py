"""Recommendation from a file of interactions to a score, as it is typed."""

import json

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.errors import DataError
from fedlm.models.special_tokens import BOS_ID, OOV_ID, PAD_ID
from fedlm.simulations.evaluation.recommendation.recommending import read_histories, recommend
from fedlm.simulations.evaluation.trained_models import open_model
from tests.simulations.data.recommendation.item_stores import made_up_sequences, write_pairs
from tests.support.untrained import untrained_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory, fedlm_here):
    folder = tmp_path_factory.mktemp("recommendation")
    write_pairs(folder / "pairs.txt", made_up_sequences(60, 15))
    done = fedlm_here(
        *("data", "import", "recommendation", "pairs.txt", "--format", "pairs", "--min-interactions", 2),
        *("--workers", 1, "--out", "items"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def simulated(folder):
    return untrained_run(folder / "federated", model="cifg_tiny", data=folder / "items", length=8)


@pytest.fixture(scope="module")
def pretrained(folder, fedlm_here):
    done = fedlm_here(
        *("pretrain", "--model", "cifg_tiny", "--data", "items", "--steps", 2, "--batch-size", 8, "--length", 8),
        *("--noise-multiplier", 1.0, "--microbatch-size", 8, "--out", "central"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / "central"


@pytest.mark.long
def test_a_federated_run_is_scored_by_ranking(folder, simulated, fedlm_here):
    done = fedlm_here("evaluate", simulated, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((simulated / "evaluation_test.json").read_text())
    table = pq.read_table(simulated / "evaluation_test.parquet").to_pydict()
    assert len(table["client_id"]) == found["users_scored"] == found["users_in_split"]
    assert set(found["scores"]) == {f"{name}@{k}" for name in ("hit", "ndcg", "coverage") for k in (1, 5, 10, 20)}
    assert 0 < found["scores"]["hit@10"]["value"] <= 1
    assert found["ranking"]["candidates"] == "all items"
    assert found["privacy"].startswith("NOT PRIVATE")
    baseline = found["popularity_baseline"]["scores"]
    assert baseline["hit@10"]["value"] > baseline["hit@1"]["value"]


@pytest.mark.long
def test_another_ranking_replaces_no_files_of_the_full_one(folder, simulated, fedlm_here):
    full = [simulated / "evaluation_heldout.json", simulated / "evaluation_heldout.parquet"]
    assert fedlm_here("evaluate", simulated, "--split", "heldout", cwd=folder).returncode == 0
    before = [path.read_bytes() for path in full]
    for options, name in {
        ("--sampled-negatives", 4): "evaluation_heldout_4_negatives",
        ("--keep-history",): "evaluation_heldout_keep_history",
        ("--sampled-negatives", 4, "--keep-history"): "evaluation_heldout_4_negatives_keep_history",
    }.items():
        done = fedlm_here("evaluate", simulated, "--split", "heldout", *options, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert [path.read_bytes() for path in full] == before
        assert f"{name}.parquet" in done.stdout
        found = json.loads((simulated / f"{name}.json").read_text())
        assert found["ranking"] != json.loads(before[0])["ranking"]
        assert pq.read_table(simulated / f"{name}.parquet").num_rows == found["users_scored"]


@pytest.mark.long
def test_a_private_central_run_is_scored_by_ranking(folder, pretrained, fedlm_here):
    done = fedlm_here(
        *("evaluate", pretrained, "--split", "heldout", "--top-k", 3, "--sampled-negatives", 4, "--out", "scores.json"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "4 others, drawn uniformly without replacement (seed 0)" in done.stdout
    assert "hit@3" in done.stdout
    found = json.loads((folder / "scores.json").read_text())
    assert set(found["scores"]) == {"hit@3", "ndcg@3", "coverage@3"}
    # The catalogue was made of the interactions, and the statement says what that means.
    assert "VOCABULARY NOT COVERED" in found["privacy"]
    assert "all items of one user" in found["privacy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate RUN --split train", "split is train, but"),
        ("evaluate RUN --personalize", "personalize does nothing for data of recommendation"),
        ("evaluate RUN --tasks arc_easy --keep-history", "--keep-history is about clients"),
        ("memorization --checkpoint RUN", "has sequences of items, which a measurement of memorisation would take for"),
    ],
)
def test_what_does_not_fit_items_is_refused(folder, simulated, fedlm_here, words, message):
    done = fedlm_here(*words.replace("RUN", str(simulated)).split(), cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr


def test_items_are_described_and_sampled(folder, fedlm_here):
    described = fedlm_here("data", "describe", "items", cwd=folder)
    assert "one sequence of items a user" in described.stdout
    sampled = fedlm_here("data", "sample", "items", "--split", "test", cwd=folder)
    assert "item" in sampled.stdout


@pytest.mark.long
def test_a_run_recommends_what_its_ranking_ranks_first(folder, simulated, fedlm_here):
    (folder / "histories.txt").write_text(
        "item1 item2\n\nitem3 item1 item2 item4 item1 item2 item4 item1 item2 item5\n"
    )
    done = fedlm_here("recommend", simulated, "--histories", "histories.txt", "--top", 4, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    about, *found = map(json.loads, done.stdout.splitlines())
    assert about["privacy"].startswith("NOT PRIVATE")
    assert [record["history"] for record in found][:2] == [["item1", "item2"], []]
    run = open_model(simulated, folder / "items")
    known = [[int(run.store.tokenizer.encode_batch([item])[0][0]) for item in record["history"]] for record in found]
    tokens = np.array([([BOS_ID, *ids[-7:]] + [PAD_ID] * 7)[:8] for ids in known])
    all_logits = np.array(run.model.apply(run.params, jnp.array(tokens)))
    for record, ids, of_tokens in zip(found, known, all_logits, strict=True):
        logits = of_tokens[min(len(ids), 7)]
        logits[: OOV_ID + 1] = logits[ids] = -np.inf
        best = np.argsort(-logits)[:4]
        assert [pair["item"] for pair in record["recommended"]] == [run.store.tokenizer.decode([id_]) for id_ in best]
        # Random weights of this size make a thousand of what rounding leaves after eight steps.
        assert np.allclose([pair["logit"] for pair in record["recommended"]], logits[best], atol=3e-3)


def test_a_history_on_the_line_and_one_of_unknown_items(folder, simulated, fedlm_here):
    done = fedlm_here("recommend", simulated, "--user-history", "item1", "item2", "--top", 99, cwd=folder)
    assert done.returncode == 0, done.stderr
    items = done.stdout.rstrip("\n").split("\t")
    assert len(items) == len(set(items)) == 13, "all but those of the history"
    assert "NOT PRIVATE" in done.stderr
    everything = fedlm_here("recommend", simulated, "--user-history", "--top", 99, cwd=folder)
    assert len(everything.stdout.split()) == 15
    unknown = fedlm_here("recommend", simulated, "--user-history", "item1", "soap", cwd=folder)
    assert unknown.returncode == 2
    assert "has no item 'soap'" in unknown.stderr
    nothing = fedlm_here("recommend", simulated, cwd=folder)
    assert "there is no history" in nothing.stderr


def test_histories_are_read_line_by_line_whatever_their_names_hold(tmp_path):
    path = tmp_path / "histories.jsonl"
    path.write_bytes('{"items": ["a\u2028b", "The Matrix"]}\r\n\n{"items": [5]}\n'.encode())
    assert read_histories(path) == [["a\u2028b", "The Matrix"], ["5"]]
    path.write_text('{"items": [true]}\n')
    with pytest.raises(DataError, match=r"line 1: found .* expected an object with a list of items"):
        read_histories(path)
    plain = tmp_path / "histories.txt"
    plain.write_bytes(b"a b\r\n\nc")
    assert read_histories(plain) == [["a", "b"], [], ["c"]]
    plain.write_text("")
    assert read_histories(plain) == []


def test_a_name_that_is_not_unicode_is_named(folder, simulated):
    with pytest.raises(DataError, match=r"history 2: .* is not Unicode text"):
        recommend(open_model(simulated, folder / "items"), [["item1"], ["\ud800"]], 2)
