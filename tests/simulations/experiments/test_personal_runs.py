"""Runs with layers that stay with people: what they gain, what is said of them, and how such runs go on."""

import json
import math
import shutil
import stat
import types

import jax
import numpy as np
import pytest

import fedlm
from fedlm.fl_core.client_algorithms.personal_layers import PersonalLayers
from fedlm.fl_core.client_algorithms.sgd import PLAIN_SGD
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.runs.statements.publishing import publish
from fedlm.simulations.engine.client_states import CLIENTS_FILE, ClientStates
from fedlm.simulations.experiments.kept_by_clients import KeptByClients
from tests.deployment.small_deployment import MODEL
from tests.support.plain_runs import StopError

PEOPLE = 12
SETTINGS = {
    "model": MODEL,
    "rounds": 6,
    "cohort_size": 6,
    "length": 5,
    "client_batch_size": 4,
    "client_learning_rate": 2.0,
    "server_optimizer": "fedavgm",
    "server_learning_rate": 1.0,
    "server_momentum": 0.0,
    "evaluate_every": 2,
    "checkpoint_every": 2,
}
PERSONAL = {"personal_layers": ("head",)}


def people_who_count_differently():
    """Half of the people count up and the others down: whatever the word, one model can only guess the next."""
    words = [4, 5, 6, 7]

    def texts(person, times):
        return [words if person % 2 else words[::-1]] * times

    train, again = ({f"person {number}": texts(number, times) for number in range(PEOPLE)} for times in (12, 3))
    return fedlm.DataInMemory.from_tokens(train, 8, heldout=again, test=again | {"new": texts(0, 1)})


@pytest.fixture(scope="module")
def data():
    return people_who_count_differently()


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, fedlm.simulate(data=data, out=out, **SETTINGS, **PERSONAL)


def kept(out, rounds, first):
    states = ClientStates(out / CLIENTS_FILE, rounds)
    found = states.read(np.arange(PEOPLE), first)
    states.close()
    return found


def test_people_who_speak_differently_gain_by_layers_of_their_own(data, whole):
    _, personal = whole
    shared = fedlm.simulate(data=data, **SETTINGS)
    # No model can do better for half of the people without doing worse for the others.
    assert shared.summary["test_loss"] > math.log(2)
    assert personal.summary["personal_test_loss"] < 0.5 * math.log(2)
    assert personal.rows[0]["bytes_up"] < 0.6 * shared.rows[0]["bytes_up"]
    assert "scores_of" not in shared.summary


def test_it_is_said_of_whom_scores_are(whole):
    _, run = whole
    assert run.summary["scores_of"].startswith("new people, who have kept nothing yet; personal_ scores are of people")
    took_part = run.summary["personal_test_clients"]
    assert PEOPLE // 2 < took_part <= PEOPLE
    scored = [row for row in run.rows if "heldout_loss" in row]
    assert [row["round"] for row in scored] == [1, 3, 5]
    for row in scored:
        assert row["personal_heldout_loss"] < row["heldout_loss"]
        assert 6 <= row["personal_heldout_clients"] <= took_part


def test_personal_layers_of_the_model_are_those_that_a_new_person_begins_with(data, whole):
    _, run = whole
    fresh = fedlm.simulate(data=data, **SETTINGS | PERSONAL | {"rounds": 1})
    np.testing.assert_array_equal(run.params["head"], fresh.params["head"])
    assert np.any(np.asarray(run.params["table"]) != np.asarray(fresh.params["table"]))


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_run_that_was_interrupted_ends_with_the_same_bits_for_everybody(data, whole, tmp_path, stop_after):
    out, expected = whole

    class Stop(fedlm.Callback):
        def on_round(self, finished):
            if finished.row["round"] == stop_after:
                raise StopError

    with pytest.raises(StopError):
        fedlm.simulate(data=data, out=tmp_path / "run", callbacks=[Stop()], **SETTINGS, **PERSONAL)
    found = fedlm.simulate(data=data, out=tmp_path / "run", **SETTINGS, **PERSONAL)
    assert found.summary["parameters_sha256"] == expected.summary["parameters_sha256"]
    assert found.summary["personal_test_loss"] == expected.summary["personal_test_loss"]
    first = {"head": expected.params["head"], "table": None}
    np.testing.assert_array_equal(*(kept(place, 6, first)["head"] for place in (tmp_path / "run", out)))


def test_a_run_does_not_go_on_without_what_its_clients_kept_or_with_other_layers(data, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    longer = {"data": data, "out": tmp_path / "run"} | SETTINGS | PERSONAL | {"rounds": 8}
    with pytest.raises(CheckpointError, match="personal_layers"):
        fedlm.simulate(**longer | {"personal_layers": ("table",)})
    (tmp_path / "run" / CLIENTS_FILE).unlink()
    with pytest.raises(CheckpointError, match="kept in 0 rounds, but the run goes on after 6; put back the file"):
        fedlm.simulate(**longer)


def test_several_processes_are_refused(tmp_path, monkeypatch):
    params = {"head": np.zeros(2, np.float32), "table": np.zeros(3, np.float32)}
    training = types.SimpleNamespace(training=LocalTraining(algorithm=PersonalLayers(PLAIN_SGD, ("head",))))
    prepared = types.SimpleNamespace(training=types.SimpleNamespace(work=training))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigurationError, match="one process alone can simulate"):
        KeptByClients(prepared, None, 0, params)


@pytest.mark.parametrize("mechanism", ["gaussian", "tree"])
def test_with_privacy_shared_layers_alone_are_clipped_noised_and_released(data, tmp_path, mechanism):
    private = {
        "privacy": mechanism,
        "noise_multiplier": 1.0,
        "update_clip_norm": 0.1,
        "cohort_sampler": "min_separation",
        "cohort_size": 4,
        "min_separation": 2,
    }
    out = tmp_path / "run"
    run = fedlm.simulate(data=data, out=out, **SETTINGS | private | PERSONAL)
    assert run.summary["privacy_guarantee"] is not None
    plain = fedlm.simulate(data=data, **SETTINGS | PERSONAL | {"rounds": 1})
    np.testing.assert_array_equal(run.params["head"], plain.params["head"])
    noise = math.sqrt(run.params["table"].size) * 0.1 / 4
    if mechanism == "gaussian":
        np.testing.assert_allclose([row["noise_norm"] for row in run.rows], noise, rtol=0.2)
    # What people keep is hidden by no noise, and so is what it comes to.
    text = json.dumps([run.summary, run.rows])
    assert "personal_test" not in text
    assert "personal_heldout" not in text
    assert stat.S_IMODE((out / CLIENTS_FILE).stat().st_mode) == 0o600
    first = {"head": run.params["head"], "table": None}
    assert np.any(kept(out, 6, first)["head"] != run.params["head"])
    published = publish(out, tmp_path / "published", lambda path: "")
    assert published.private
    assert CLIENTS_FILE not in published.files
    again = fedlm.simulate(data=data, out=out, **SETTINGS | private | PERSONAL)
    jax.tree_util.tree_map(np.testing.assert_array_equal, again.params, run.params)
