"""Samplers in whole experiments: their settings, their files, and what a run records of them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, DataError
from fedlm.simulations.comparisons import comparison
from fedlm.simulations.comparisons.cell_execution import LocalProcesses
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.engine.cohort_samplers import make_cohorts
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from tests.support.plain_runs import PUBLIC

pytestmark = pytest.mark.usefixtures("plain_cohorts")


@pytest.fixture(scope="module")
def train(small_store):
    return StoredData(TokenStore.open(small_store).split("train"), 8)


@pytest.fixture
def trace(tmp_path, train):
    """All clients by day, three of them by night."""
    path = tmp_path / "trace.csv"
    rows = [f"{name},6,0" for name in train.client_ids] + [f"{name},0,6" for name in train.client_ids[:3]]
    path.write_text("\n".join(["client_id,start,end", "stranger,1,2", *rows]) + "\n")
    return path


def settings(small_store, **changes):
    few = {"cohort_sampler": "uniform", "cohort_size": 5, "rounds": 3, "checkpoint_every": 1}
    return compose(Experiment, data=small_store, **PUBLIC | few | changes)


def cohorts_of(experiment, train):
    return make_cohorts(experiment.cohorts, train, experiment.rounds, experiment.seed)


def test_clients_weigh_their_examples_to_a_power(small_store, train):
    for exponent in (1.0, 0.5, -2.0):
        changes = {"cohort_sampler": "weighted", "cohort_weight_exponent": exponent}
        sampler = cohorts_of(settings(small_store, **changes), train).sampler
        np.testing.assert_allclose(np.exp(sampler.log_weights), train.num_examples.astype(float) ** exponent, rtol=1e-9)

    # Those without examples have no weight.
    some = SimpleNamespace(num_examples=np.array([3, 0, 1, 0]), client_ids=("a", "b", "c", "d"))
    for exponent in (1.0, 0.0, -1.0):
        changes = {"cohort_sampler": "weighted", "cohort_weight_exponent": exponent, "cohort_size": 2}
        sampler = cohorts_of(settings(small_store, **changes), some).sampler
        assert all(set(sampler.sample(number).tolist()) == {0, 2} for number in range(20))


def test_weights_may_come_from_a_file(small_store, train, tmp_path):
    path = tmp_path / "weights.csv"
    path.write_text("client_id,weight\n" + "".join(f"{name},2\n" for name in train.client_ids[10:15]))
    cohorts = cohorts_of(settings(small_store, cohort_sampler="weighted", cohort_weights=path), train)
    assert sorted(cohorts.sampler.sample(0).tolist()) == [10, 11, 12, 13, 14]
    assert cohorts.file.clients == 5
    with pytest.raises(ConfigurationError, match=r"cohort_size is 6.*above 0, 5"):
        cohorts_of(settings(small_store, cohort_sampler="weighted", cohort_weights=path, cohort_size=6), train)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort_sampler": "availability"}, "there is no availability_trace; give one"),
        ({"availability_trace": "x"}, "availability_trace is x, which does nothing with cohort_sampler uniform"),
        ({"round_minutes": 5.0}, "round_minutes is 5.0, which does nothing"),
        ({"cohort_weights": "x"}, "cohort_weights is x, which does nothing.*give cohort_sampler weighted"),
        ({"cohort_sampler": "weighted", "availability_cycle_hours": 2.0}, "availability_cycle_hours is 2.0"),
        ({"cohort_weight_exponent": 0.5}, "cohort_weight_exponent is 0.5"),
        (
            {"cohort_sampler": "weighted", "cohort_weights": "x", "cohort_weight_exponent": 0.5},
            "does nothing with cohort_weights",
        ),
        ({"cohort_sampler": "weighted", "cohort_weight_exponent": float("inf")}, "must be finite"),
        ({"cohort_sampler": "availability", "availability_trace": "x", "round_minutes": 0.0}, "round_minutes is 0.0"),
        ({"cohort_sampler": "best"}, "cohort_sampler is 'best'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(small_store, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        settings(small_store, **changes)


def by_trace(small_store, trace, **changes):
    few = {"cohort_sampler": "availability", "availability_trace": trace, "round_minutes": 180.0}
    return settings(small_store, **few | changes)


@pytest.mark.long
def test_a_smaller_cohort_is_recorded_and_a_changed_trace_is_noticed(small_store, trace, tmp_path):
    out = tmp_path / "run"
    summary = run_experiment(by_trace(small_store, trace), out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["cohort"] for row in rows] == [3, 3, 5]
    assert summary["cohort_file"]["unknown_rows"] == 1
    moved = trace.rename(tmp_path / "elsewhere.csv")
    with pytest.raises(DataError, match=r"trace\.csv: cannot be read"):
        run_experiment(by_trace(small_store, trace), out)
    longer = run_experiment(by_trace(small_store, moved, rounds=4), out)
    assert longer["rounds"] == 4
    moved.write_text(moved.read_text().replace("stranger,1,2", "stranger,1,3"))
    for rounds in (4, 5):
        with pytest.raises(CheckpointError, match="another content of the file that cohorts are drawn by"):
            run_experiment(by_trace(small_store, moved, rounds=rounds), out)


def test_an_empty_hour_is_found_before_anything_is_written(small_store, trace, tmp_path):
    trace.write_text("client_id,start,end\n" + trace.read_text().splitlines()[2].replace(",6,0", ",0,20") + "\n")
    with pytest.raises(ConfigurationError, match="no client is available in round 7, which begins at hour 21"):
        run_experiment(by_trace(small_store, trace, cohort_size=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_comparison_notices_a_changed_file(small_store, train, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "run_cells", lambda cells, workers, observe: {})
    monkeypatch.setattr(comparison, "read_result", lambda cell, failure: None)
    path = tmp_path / "weights.csv"
    path.write_text(f"client_id,weight\n{train.client_ids[0]},2\n")
    settings = compose(
        Comparison, data=small_store, models=("cifg_tiny",), cohort_sampler="weighted", cohort_weights=path
    )
    for _ in range(2):
        comparison.run_comparison(settings, tmp_path / "out", LocalProcesses(1))
    path.write_text(f"client_id,weight\n{train.client_ids[1]},2\n")
    with pytest.raises(CheckpointError, match="cohort_file_sha256 was"):
        comparison.run_comparison(settings, tmp_path / "out", LocalProcesses(1))
