"""FedJAX trains our models on our stores and comes where we come; its quantizers, samplers and data fit ours."""

import json
import math
import subprocess
import sys

import pytest

from benchmarks.interop.comparisons import compare_with_fedjax
from benchmarks.interop.our_rounds import make_task
from benchmarks.interop.task import Setting
from tests.support.interop_page import block, run_block

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("model", ["cifg_tiny", "transformer_tiny"])
def test_federated_averaging_ends_where_ours_does(model, tmp_path):
    found = compare_with_fedjax(Setting(model), tmp_path)
    assert max(found.comparison.differences) < 1e-6 < 1e-3 < found.comparison.moved
    assert found.theirs["loss"] == pytest.approx(found.ours.loss, rel=1e-5)
    assert found.theirs["accuracy"] == pytest.approx(found.ours.accuracy)
    assert found.theirs["in_vocabulary_accuracy"] == pytest.approx(found.ours.in_vocabulary_accuracy)


@pytest.fixture(scope="module")
def features(reference_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    make_task(Setting("cifg_tiny", vocabulary_size=100)).save(folder)
    return reference_python("fedjax_features.py", folder)


def test_quantizers_have_one_grid_and_as_many_bits(features):
    found = features["quantizing"]
    assert found["off_grid"] < 1e-3
    assert found["from_value"] <= 1 + 1e-3
    assert found["our_bits"] == found["their_bits"]


def test_samplers_take_our_clients(features):
    names = {f"client {number}" for number in range(5)}
    for cohorts in features["cohorts"].values():
        assert all(len({*cohort}) == 2 and {*cohort} <= names for cohort in cohorts)


def test_data_goes_there_and_back(features):
    assert features["data"] is True
    assert features["ids"] == [[1, 4, 5, 3, 2], [1, 5, 3, 4, 5]]


def test_the_lines_of_the_page_run(small_store, tmp_path):
    scores = json.loads(run_block("fedjax", small_store, tmp_path).replace("'", '"'))
    assert set(scores) == {"loss", "log_perplexity", "accuracy", "in_vocabulary_accuracy"}
    assert scores["loss"] < math.log(120) - 0.5, "better than a guess among 120 tokens"
    assert (tmp_path / "params.npz").exists()
    script = tmp_path / "ours.py"
    script.write_text(block())
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < scores["loss"] + 0.1, "it goes on from FedJAX's parameters"
