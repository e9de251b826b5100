"""The harness with our model of a published folder finds what it finds with its own model for transformers."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation.peers.language_tasks import TASKS, write_tasks, write_tokenizer
from fedlm.simulations.weights.exporting import read_run
from fedlm.simulations.weights.importing import import_model
from tests.simulations.weights.published_models import built, publish

_FOUND = json.loads((Path(__file__).parent / "harness_scores.json").read_text())
CONFIG, GOLDEN = _FOUND["config"], _FOUND["tasks"]


@pytest.fixture(scope="module")
def scored(harness, tmp_path_factory):
    import lm_eval
    from lm_eval.tasks import TaskManager

    from fedlm.simulations.evaluation.language_tasks.harness_model import HarnessModel

    folder = tmp_path_factory.mktemp("published")
    publish(folder / "model", CONFIG)
    write_tokenizer(folder / "model")
    import_model(folder / "model", folder / "run")
    write_tasks(folder / "tasks")
    stored = read_run(folder / "run")
    model = HarnessModel(built(stored), stored.params, stored.tokenizer, max_length=CONFIG["max_position_embeddings"])
    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    state = random.getstate(), np.random.get_state()
    found = lm_eval.simple_evaluate(model, tasks=[*TASKS], task_manager=manager)
    random.setstate(state[0])
    np.random.set_state(state[1])
    return found, model.counts


@pytest.mark.long
@pytest.mark.parametrize("name", TASKS)
def test_every_request_is_answered_as_the_harness_answers_it(scored, name):
    found, _ = scored
    for document, sample in zip(GOLDEN[name]["responses"], found["samples"][name], strict=True):
        for theirs, ours in zip(document, sample["resps"], strict=True):
            if TASKS[name]["output_type"] == "generate_until":
                assert ours == theirs
            elif TASKS[name]["output_type"] == "loglikelihood_rolling":
                np.testing.assert_allclose(ours, theirs, atol=1e-4)
            else:
                np.testing.assert_allclose([pair[0] for pair in ours], [pair[0] for pair in theirs], atol=1e-4)
                assert [pair[1] for pair in ours] == [pair[1] for pair in theirs]
    for key, value in GOLDEN[name]["metrics"].items():
        assert found["results"][name][key] == pytest.approx(value, abs=1e-4), key


@pytest.mark.long
def test_the_tasks_reach_the_ends_of_what_a_model_reads(scored):
    _, counts = scored
    assert counts["cut"] > 5
    assert counts["unknown"] > 0
    assert counts["shortened"] == 0
