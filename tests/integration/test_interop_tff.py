"""TensorFlow Federated trains our models on our stores and comes where we come, also with the noise of its tree."""

import dataclasses
import json
import math

import pytest

from benchmarks.interop.comparisons import compare_with_tff, tff_setting
from tests.support.interop_page import run_block

pytestmark = pytest.mark.reference


def found(kind, folder):
    return compare_with_tff(kind, dataclasses.replace(tff_setting(kind, "cifg_tiny", 3), vocabulary_size=200), folder)


def test_federated_averaging_and_evaluation_end_where_ours_do(tmp_path):
    comparison, ours, theirs = found("mean", tmp_path)
    assert max(comparison.differences) < 1e-6 < 1e-3 < comparison.moved
    assert theirs == pytest.approx(ours._asdict(), rel=1e-5)


@pytest.mark.parametrize("kind", ["clipped", "tree"])
def test_clipped_means_and_the_noise_of_a_tree_end_where_ours_do(kind, tmp_path):
    comparison = found(kind, tmp_path).comparison
    assert max(comparison.differences) < 2e-6 < 1e-3 < comparison.moved


def test_the_lines_of_the_page_run(small_store, tmp_path):
    scores = json.loads(run_block("tff", small_store, tmp_path, timeout=550).replace("'", '"'))
    assert set(scores) == {"loss", "perplexity", "accuracy", "in_vocabulary_accuracy"}
    assert scores["loss"] < math.log(120) - 0.5, "better than a guess among 120 tokens"
