"""A step that ruins the model is undone."""

import pytest

from fedlm.fl_core.rounds.aggregation import WeightedMean
from fedlm.fl_core.rounds.norm_bounds import BoundedMean
from fedlm.fl_core.rounds.round_loop import FederatedOptimization
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, init_server
from fedlm.fl_core.runs.absurd_steps import AbsurdSteps
from fedlm.fl_core.runs.driver import Run
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.identity import RunIdentity
from fedlm.fl_core.runs.round_rows import find_divergence
from fedlm.fl_core.runs.run_folder import RunFolder
from tests.support.liars import FIRST, Everyone, PullingClients, score

SERVER = ServerOptimizerConfig("fedavg")


def run(out, runner, rounds=12, save_every=4, goes_back=True, until=None, bounds_norms=False):
    rows = []
    with RunFolder(out) as folder:
        of_rounds = Run(
            folder, RunIdentity("test", {}, {}), steps=rounds, save_every=save_every, find_divergence=find_divergence
        )
        optimization = FederatedOptimization(SERVER, 0.5, 1.0, 0)
        fresh, averaging = init_server(SERVER, FIRST), BoundedMean() if bounds_norms else WeightedMean()
        training = FederatedTraining(of_rounds, optimization, fresh, averaging=averaging, goes_back=goes_back)
        of_rounds.take(
            training.rounds(runner, Everyone(), score, 2), rows.append, lambda: training.rounds_done == until
        )
        return training.server.params, rows, of_rounds.divergence


@pytest.mark.long
def test_a_run_goes_back_to_the_checkpoint_before_and_ends_well(tmp_path):
    honest, _, _ = run(tmp_path / "honest", PullingClients())
    params, rows, divergence = run(tmp_path / "run", PullingClients(lies=[4]))
    assert [row["round"] for row in rows if "went_back" in row] == [5]
    assert rows[5]["heldout_loss"] > 3 > score(params)["heldout_loss"]
    assert divergence is None
    assert score(params)["heldout_loss"] < score(honest)["heldout_loss"] + 0.5
    ruined, _, _ = run(tmp_path / "ruined", PullingClients(lies=[4]), goes_back=False)
    assert score(ruined)["heldout_loss"] > 1.5


def test_a_run_goes_back_to_its_beginning_and_passes_over_a_checkpoint_that_is_ruined_itself(tmp_path):
    params, rows, _ = run(tmp_path / "first", PullingClients(lies=[0]), rounds=2)
    assert rows[1]["went_back"] == 1
    assert (params["x"] == FIRST["x"]).all()
    params, rows, _ = run(tmp_path / "run", PullingClients(lies=[6]), rounds=8, save_every=1)
    assert rows[7]["went_back"] == 1
    assert score(params)["heldout_loss"] == pytest.approx(rows[5]["heldout_loss"])


def test_a_run_that_goes_on_remembers_what_it_had_reached(tmp_path):
    clients = PullingClients(lies=[8])
    run(tmp_path / "run", clients, until=8)
    _, rows, _ = run(tmp_path / "run", clients)
    assert [row["round"] for row in rows if "went_back" in row] == [9]


@pytest.mark.long
def test_a_run_that_goes_back_forgets_how_long_updates_were_meanwhile(tmp_path):
    """Four liars of ten ruin the model, and honest updates grow; the bound is that of the checkpoint again, also in a
    run that was stopped and goes on."""
    clients = PullingClients(lies=range(5, 10), liars=4)
    options = {"rounds": 20, "save_every": 2, "bounds_norms": True}
    _, rows, _ = run(tmp_path / "run", clients, until=10, **options)
    rows += run(tmp_path / "run", clients, **options)[1]
    [back] = [row for row in rows if "went_back" in row]
    bounds = {row["round"]: row["update_norm_bound"] for row in rows}
    assert bounds[back["round"] + 1] == bounds[back["went_back_to"]]


def test_a_run_that_goes_back_for_ever_has_diverged(tmp_path):
    _, rows, divergence = run(tmp_path / "run", PullingClients(lies=range(4, 40)), rounds=40)
    assert [row["went_back"] for row in rows if "went_back" in row] == [1, 2, 3]
    assert "absurd 3 times in a row" in divergence.reason


@pytest.mark.parametrize(("loss", "absurd"), [(3.4, False), (3.6, True), (None, True), (float("nan"), True)])
def test_which_losses_are_absurd(loss, absurd):
    steps = AbsurdSteps([{"heldout_loss": 2.0}, {"heldout_loss": 2.5}])
    assert steps.look({"heldout_loss": loss}, dict) == absurd
    assert not steps.look({"heldout_accuracy": 0.0}, dict)
