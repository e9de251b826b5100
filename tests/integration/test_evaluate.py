"""`fedlm evaluate` as a user runs it, on a run of `fedlm simulate`."""

import json

import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="module")
def finished(small_store, tmp_path_factory, fedlm_here):
    out = tmp_path_factory.mktemp("runs") / "run"
    few = ["--model=cifg_tiny", "--rounds=2", "--cohort-size=6", "--length=8", "--devices=1"]
    views = ["--client-max-examples=5", "--client-cap-order=cap_then_shuffle", "--client-batches-across-epochs"]
    result = fedlm_here("simulate", f"--data={small_store}", f"--out={out}", "--save-client-scores", *few, *views)
    assert result.returncode == 0, result.stderr
    return out


@pytest.mark.long
def test_the_test_clients_score_as_the_run_said(finished, fedlm_here):
    result = fedlm_here("evaluate", finished, "--devices=1")
    assert result.returncode == 0, result.stderr
    summary = json.loads((finished / "summary.json").read_text())
    found = json.loads((finished / "evaluation_test.json").read_text())
    assert found["scores"]["perplexity"] == summary["test_perplexity"]
    assert found["clients"] == summary["test_clients"]
    table = pq.read_table(finished / "test_clients.parquet")
    assert table.num_rows == summary["test_clients"]["tokens"]["count"] == len(set(table["client_id"].to_pylist())) > 1
    assert pq.read_table(finished / "evaluation_test.parquet") == table
    assert "perplexity" in result.stdout
    assert f"examples {found['examples']}/{found['examples']}" in result.stderr
    assert "left" in result.stderr


@pytest.mark.long
def test_personalizing_shows_before_and_after(finished, fedlm_here):
    words = ["--split=heldout", "--personalize", "--client-learning-rate=0.1", "--max-clients=4", "--devices=1"]
    result = fedlm_here("evaluate", finished, *words)
    assert result.returncode == 0, result.stderr
    found = json.loads((finished / "personalization_heldout_4_clients.json").read_text())
    assert found["client_learning_rate"] == 0.1
    assert f"{100 * found['share_of_clients_better']:.1f} % of the clients got better" in result.stdout
    assert {"before", "after"} <= {*result.stdout.split()}
    assert "clients 4/4" in result.stderr
    table = pq.read_table(finished / "personalization_heldout_4_clients.parquet")
    assert table.num_rows == 4
    assert {"training_examples", "perplexity", "personalized_perplexity"} <= set(table.column_names)
