"""A run is opened again, its clients are scored, and each goes on training on its own text."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.composed_settings import compose, settings_as_json, with_changes
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.errors import CheckpointError, DataError
from fedlm.fl_core.rounds.scores import ClientSums, evaluate
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.models.losses import ExampleSums
from fedlm.simulations.data.federated_data import InMemoryData, evaluation_batches
from fedlm.simulations.evaluation.client_evaluation import evaluate_split, write_evaluation
from fedlm.simulations.evaluation.personalization import personalize, share_better
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.experiments.trained_run import federated_run
from tests.simulations.data.made_up_store import import_made_up
from tests.support.plain_runs import PUBLIC

pytestmark = pytest.mark.usefixtures("plain_cohorts")


@pytest.fixture(scope="module")
def settings(small_store):
    changes = {"rounds": 2, "checkpoint_every": 1, "client_batch_size": 4, "client_max_batches": 9}
    return compose(Experiment, data=small_store, **PUBLIC | changes | {"test_examples": None})


@pytest.fixture(scope="module")
def finished(settings, plain_cohorts, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, run_experiment(settings, out, save_client_scores=True)


@pytest.fixture(scope="module")
def run(finished):
    return federated_run(finished[0], open_model(finished[0]))


def personalized(run, split, rate=None, clients=None, **others):
    training = run.experiment.training.local_training()
    return personalize(run.trained, training, split, rate, max_clients=clients, **others)


def test_a_run_opens_with_its_settings_and_scores_as_it_did_when_training_ended(finished, run, settings):
    out, summary = finished
    assert (run.experiment, run.trained.steps) == (settings, 2)
    found = evaluate_split(run.trained, "test")
    assert {f"test_{name}": value for name, value in found.summary["scores"].items()}.items() <= summary.items()
    assert found.summary["clients"] == summary["test_clients"]
    table = pq.read_table(out / "test_clients.parquet")
    assert table.to_pydict() == {name: list(values) for name, values in found.columns.items()}
    assert table.num_rows == found.summary["clients_scored"] == summary["test_clients"]["tokens"]["count"]


def test_a_client_scores_as_its_own_examples_do(run):
    data, columns = run.trained.split("heldout"), evaluate_split(run.trained, "heldout").columns
    for row in (0, len(columns["client_id"]) - 1):
        sequences = data.sequences(data.client_ids.index(columns["client_id"][row]))
        alone = evaluate(run.trained.model, run.trained.params, evaluation_batches(InMemoryData([sequences]), 8, 16))
        assert columns["examples"][row] == len(sequences)
        np.testing.assert_allclose([columns[name][row] for name in alone._fields], alone, rtol=1e-5)


def test_some_clients_are_always_the_same(run):
    seen = []
    found = evaluate_split(run.trained, "train", 7, lambda done, total: seen.append((done, total)))
    assert found.columns["client_id"] == evaluate_split(run.trained, "train", 7).columns["client_id"]
    everyone = evaluate_split(run.trained, "train").columns
    rows = [everyone["client_id"].index(name) for name in found.columns["client_id"]]
    assert len(set(rows)) == 7
    np.testing.assert_allclose(np.array(everyone["loss"])[rows], found.columns["loss"], rtol=1e-6)
    assert seen[-1] == (sum(found.columns["examples"]),) * 2


def test_the_second_half_is_scored_before_and_after(run):
    seen = []
    found = personalized(run, "train", 0.1, 12, observe=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 12) for number in range(1, 13)]
    data, columns = run.trained.split("train"), found.columns
    for row, name in enumerate(columns["client_id"]):
        sequences = data.sequences(data.client_ids.index(name))
        half = len(sequences) // 2
        assert (columns["training_examples"][row], columns["examples"][row]) == (half, len(sequences) - half)
        assert half >= 1
        second = evaluate(
            run.trained.model, run.trained.params, evaluation_batches(InMemoryData([sequences[half:]]), 8, 16)
        )
        np.testing.assert_allclose(columns["perplexity"][row], second.perplexity, rtol=1e-5)
        assert columns["personalized_loss"][row] != columns["loss"][row]
    better = np.mean(columns["personalized_perplexity"] < columns["perplexity"])
    assert found.summary["share_of_clients_better"] == better > 0.5, "two rounds leave much to learn"


def test_without_a_step_nothing_changes(run):
    found = personalized(run, "test", 1e-30)
    np.testing.assert_array_equal(found.columns["loss"], found.columns["personalized_loss"])
    assert found.summary["scores"] == found.summary["personalized_scores"]
    assert found.summary["clients"] == found.summary["personalized_clients"]
    assert found.summary["share_of_clients_better"] == 0
    sizes = run.trained.split("test").num_examples
    assert found.summary["clients_scored"] == np.sum(sizes > 1) < found.summary["clients_in_split"] == len(sizes)


def test_training_follows_the_settings_of_the_run(run):
    """One local step changes less than the epochs of other settings."""
    short = run._replace(experiment=with_changes(run.experiment, client_max_batches=1))
    longer = run._replace(experiment=with_changes(run.experiment, client_epochs=4))
    whole, little, more = (personalized(one, "train", None, 8).columns for one in (run, short, longer))
    change = [np.abs(columns["personalized_loss"] - columns["loss"]).mean() for columns in (little, more)]
    assert 0 < change[0] < change[1]
    assert personalized(run, "train", run.experiment.client_learning_rate, 8).columns["personalized_loss"].tolist() == (
        whole["personalized_loss"].tolist()
    )


def test_a_client_whose_training_diverged_did_not_get_better():
    def sums(losses, tokens):
        zeros = np.zeros(len(losses))
        columns = ExampleSums(zeros, zeros, np.array(losses), np.array(tokens), zeros, zeros, zeros)
        return ClientSums(np.arange(len(losses)), np.ones(len(losses), int), columns)

    before = sums([4.0, 4.0, 4.0, 0.0], [2.0, 2.0, 2.0, 0.0])
    assert share_better(before, sums([3.0, np.nan, 5.0, 0.0], [2.0, 2.0, 2.0, 0.0])) == 1 / 3
    assert share_better(sums([0.0], [0.0]), sums([0.0], [0.0])) is None


def test_an_evaluation_is_two_files_and_one_of_some_clients_leaves_that_of_all(run, tmp_path):
    everyone, record = write_evaluation(tmp_path, evaluate_split(run.trained, "heldout"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "evaluation_heldout.json",
        "evaluation_heldout.parquet",
    ]
    table, found = everyone.with_suffix(".parquet").read_bytes(), everyone.read_bytes()
    assert json.loads(found) == record
    path, record = write_evaluation(tmp_path, personalized(run, "heldout", None, 2), 2)
    assert path.name == "personalization_heldout_2_clients.json"
    assert record["clients_scored"] == pq.read_table(path.with_suffix(".parquet")).num_rows == 2
    assert (everyone.with_suffix(".parquet").read_bytes(), everyone.read_bytes()) == (table, found)


def test_a_table_of_clients_goes_with_its_summary(settings, tmp_path):
    """It is written for a run that had finished without, and goes when the run has gone on without."""
    out = tmp_path / "run"
    first = run_experiment(settings, out)
    assert not (out / "test_clients.parquet").exists()
    second = run_experiment(settings, out, save_client_scores=True)
    assert pq.read_table(out / "test_clients.parquet").num_rows == first["test_clients"]["tokens"]["count"]
    assert second == first
    run_experiment(with_changes(settings, rounds=3), out)
    assert not (out / "test_clients.parquet").exists()


def test_a_cap_on_test_examples_holds_for_clients_too(settings, tmp_path):
    out = tmp_path / "run"
    summary = run_experiment(with_changes(settings, rounds=1, test_examples=25), out, save_client_scores=True)
    table = pq.read_table(out / "test_clients.parquet")
    assert sum(table["examples"].to_pylist()) == 25
    assert table.num_rows == summary["test_clients"]["tokens"]["count"]


def test_a_folder_that_is_no_run_of_clients_here_is_named(small_store, tmp_path):
    for folder, what in ((tmp_path, "has no checkpoint"), (tmp_path / "nowhere", "there is no such folder")):
        with pytest.raises(CheckpointError, match=f"{folder}: {what}"):
            open_model(folder)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="has no checkpoint; give the folder of a run"):
        open_model(tmp_path)
    moved = r"moved: there is no such folder, .* say with data where it is now"
    for folder, settings, data, error, message in (
        ("served", compose(Deployment, model="cifg_tiny"), small_store, CheckpointError, "a run of `fedlm serve`"),
        ("run", compose(Experiment, model="cifg_tiny", data=tmp_path / "moved"), None, DataError, moved),
    ):
        with Checkpoints(tmp_path / folder / "checkpoints") as checkpoints:
            about = {"experiment": settings_as_json(settings), "vocabulary": "abc"}
            checkpoints.save(1, {"params": {}}, about)
        with pytest.raises(error, match=message):
            federated_run(tmp_path / folder, open_model(tmp_path / folder, data))


def test_data_of_another_vocabulary_is_refused(finished, tmp_path):
    import_made_up(tmp_path / "other")
    with pytest.raises(DataError, match="another vocabulary than the run"):
        open_model(finished[0], tmp_path / "other")
