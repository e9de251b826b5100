"""The plain runner of cohorts, which stands in for the engine in tests, does what that does."""

import pytest

from fedlm.fl_core import composed_settings
from fedlm.fl_core.composed_settings import compose
from fedlm.simulations.experiments import simulated_run
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from tests.support.plain_runs import PRIVATE, PUBLIC, PlainCohorts

ALIKE = ("test_loss", "bytes_up", "bytes_down", "train_loss", "examples", "steps", "clients_clipped")


@pytest.mark.parametrize("settings", [PUBLIC, PRIVATE | {"noise_seed": "experiment"}], ids=["public", "private"])
def test_a_round_of_the_plain_runner_is_one_of_the_engine(settings, small_store, tmp_path, monkeypatch):
    rows = []
    for name, engine in (("engine", simulated_run._engine), ("plain", PlainCohorts)):
        monkeypatch.setattr(simulated_run, "_engine", engine)
        summary = run_experiment(
            compose(Experiment, data=small_store, **settings), tmp_path / name, lambda row, _: rows.append(row)
        )
        rows[-1] |= summary
    for said in ALIKE:
        assert rows[0][said] == pytest.approx(rows[1][said], rel=1e-5), said


def test_a_run_that_was_begun_with_a_setting_that_did_nothing_goes_on_without_it(small_store, tmp_path, monkeypatch):
    monkeypatch.setattr(simulated_run, "_engine", PlainCohorts)
    settings = PUBLIC | {"data": small_store, "server_optimizer": "fedavg"}
    with monkeypatch.context() as before:
        before.setattr(composed_settings, "refuse_idle_settings", lambda *_: None)
        begun = run_experiment(compose(Experiment, **settings, server_momentum=0.5), tmp_path / "run")
    on = settings | {"rounds": 2}
    found = run_experiment(compose(Experiment, **on), tmp_path / "run")
    assert begun["experiment"]["server_momentum"] == 0.5
    assert (
        found["parameters_sha256"] == run_experiment(compose(Experiment, **on), tmp_path / "new")["parameters_sha256"]
    )
