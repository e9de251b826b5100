"""Federated plans by laws of a made-up world: within the budget, and accounted and refused as `fedlm account` does."""

import dataclasses
import json
import math
import tomllib

import numpy as np
import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.promise.guarantee import calibrate
from fedlm.fl_core.privacy.promise.noise_table import TABLE_ERROR
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.laws.laws_file import Laws, write_laws
from fedlm.simulations.laws.planning.federated_planner import FederatedBudget, FederatedPlanner
from fedlm.simulations.laws.planning.federated_settings import FederatedSettings
from fedlm.simulations.laws.planning.federated_training import plan_federated
from tests.simulations.laws.recorded_runs import recorded_run
from tests.support.synthetic_laws import surface_of

MODELS = {"transformer_2x64": 130_000, "transformer_3x128": 660_000}
SURFACE = surface_of(MODELS, steps=2.0 ** np.arange(5, 11), batch_size=32, length=16, measured_steps=512.0)
BUDGET = FederatedBudget(people=1_000_000, epsilon=4.0, delta=1e-7, client_trainings=200_000)


def laws_of(mechanism, **task):
    of_all = {"command": "simulate", "update_clip_norm": 0.5, "learning_rate": "server_learning_rate"}
    return Laws(surface=SURFACE, task=of_all | {"privacy": mechanism, "client_learning_rate": 0.5} | task)


def planned(mechanism="gaussian", epsilon=4.0, **settings):
    of_budget = {"people": BUDGET.people, "client_trainings": BUDGET.client_trainings}
    return plan_federated(laws_of(mechanism), FederatedSettings(**of_budget | settings), epsilon, 1e-7)


def planner_of(mechanism, sampler, **settings):
    options = None if mechanism == "gaussian" else MECHANISMS[mechanism].options()
    return FederatedPlanner(SURFACE, mechanism, options, sampler, FederatedSettings(**settings))


@pytest.mark.long
@pytest.mark.parametrize(
    ("mechanism", "settings", "sampler", "adjacency"),
    [
        ("gaussian", {"people": 20_000}, "poisson", "add-or-remove: one client"),
        ("tree", {"cohort_at_most": 2000}, "min_separation", "zero-out"),
    ],
)
def test_a_plan_is_accounted_as_fedlm_account_does(capsys, mechanism, settings, sampler, adjacency):
    found = planned(mechanism, **settings)
    assert found.cohort_sampler == sampler
    if sampler == "poisson":
        assert found.min_separation is None
        limits = ("--sampling-probability", found.cohort_size / found.people)
        limits += ("--noise-multiplier", found.noise_multiplier)
    else:
        assert found.min_separation == min(found.people // found.cohort_size, found.rounds)
        limits = ("--min-separation", found.min_separation, "--epsilon", 4.0)
    words = ("account", mechanism, "--rounds", found.rounds, "--delta", 1e-7, *limits, "--json")
    assert main([*map(str, words)]) == 0
    statement = json.loads(capsys.readouterr().out)
    guarantee = found.guarantee.as_json()
    assert {name: statement[name] for name in guarantee} == json.loads(json.dumps(guarantee))
    assert 3.9 < guarantee["epsilon"] <= 4
    assert guarantee["adjacency"].startswith(adjacency)
    assert sampler == "poisson" or f"differ by at least {found.min_separation}" in guarantee["assumptions"][0]
    assert found.noise_batch_ratio == guarantee["noise_multiplier"] / found.cohort_size


@pytest.mark.parametrize(
    ("mechanism", "sampler", "settings", "error"),
    [
        ("gaussian", "poisson", {}, TABLE_ERROR),
        ("gaussian", "shuffled_epochs", {}, 1e-6),
        ("tree", "min_separation", {"max_participations": 2, "min_separation": 40}, 1e-6),
    ],
)
def test_configurations_keep_to_the_budget_and_have_the_noise_of_the_accountant(mechanism, sampler, settings, error):
    people = 20_000
    planner = planner_of(mechanism, sampler, rounds_at_most=300, cohort_at_most=5000, **settings)
    found = planner.configurations(BUDGET._replace(people=people))
    assert len(np.unique(found.batch_size)) > 10
    assert (found.batch_size * found.steps <= BUDGET.client_trainings).all()
    assert found.steps.max() == 300
    assert found.batch_size.max() == (500 if settings else 5000)
    if settings:
        assert (found.batch_size * found.steps <= 2 * people).all()
        assert found.batch_size.max() * 40 == people
    for number in (0, len(found.steps) - 1):
        cohort_size, rounds = int(found.batch_size[number]), int(found.steps[number])
        with_noise = planner.with_noise(rounds, planner.participation(people, cohort_size, rounds))
        exact = calibrate(with_noise, 1e-7, epsilon=4.0).noise_multiplier
        assert found.noise_batch_ratio[number] * cohort_size == pytest.approx(exact, rel=error)


def test_the_best_is_the_least_of_all_and_more_of_anything_never_hurts():
    found = planned()
    losses = planner_of("gaussian", "poisson").configurations(BUDGET).loss
    # The model that can be built is the nearest, and its noise exact.
    assert found.loss == pytest.approx(np.nanmin(losses), rel=0.01)
    assert found.near["loss"][0] == np.nanmin(losses)
    assert found.near["cohort_size"][0] <= found.cohort_size <= found.near["cohort_size"][1]
    assert set(found.doubled) == {"people", "epsilon", "client_trainings"}
    assert all(more.loss <= found.near["loss"][0] for more in found.doubled.values())
    assert found.model.parameters == found.parameters
    assert found.rates == {"client_learning_rate": 0.5, "server_learning_rate": 2**-8}
    assert found.client_trainings == found.cohort_size * found.rounds <= BUDGET.client_trainings
    found = planned(epsilon=math.inf)
    assert found.guarantee is found.mechanism is found.cohort_sampler is None
    assert (found.noise_multiplier, found.cohort_size) == (0, 32)  # that was measured
    assert any(note.startswith("extrapolated: the loss at") for note in found.notes)


@pytest.mark.parametrize(
    ("laws", "settings", "message"),
    [
        (laws_of("tree"), {"cohort_sampler": "poisson"}, "no sound analysis"),
        (laws_of("gaussian"), {"min_separation": 5}, "does nothing with cohort_sampler poisson"),
        (laws_of("tree", update_clip_norm=None), {}, "needs update_clip_norm"),
        (laws_of("none"), {}, "runs without noise"),
        (laws_of("gaussian", command="pretrain"), {}, "not of federated runs"),
        (Laws(surface=SURFACE), {}, "not of federated runs"),
        (laws_of("gaussian"), {"people": None}, "needs people and client_trainings"),
        (laws_of("gaussian"), {"client_trainings": 20}, "no training of 32 to 1024 rounds fits"),
        (laws_of("tree"), {"min_separation": 2_000_000}, "no training of 32 to 1024 rounds fits"),
        (laws_of("gaussian"), {"people": 40, "client_trainings": 1000}, "nothing is planned outside"),
    ],
)
def test_what_the_accountant_or_the_grid_does_not_allow_is_refused(laws, settings, message):
    given = {"people": BUDGET.people, "client_trainings": BUDGET.client_trainings} | settings
    with pytest.raises(ConfigurationError, match=message):
        plan_federated(laws, FederatedSettings(**given), 4.0, 1e-7)


def test_the_command_states_the_whole_promise(tmp_path, capsys):
    path = tmp_path / "laws.json"
    write_laws(laws_of("tree"), path)
    words = ["laws", "plan", "--laws", str(path), "--epsilon", "4"]
    budget = ["--people", "1e6", "--client-trainings", "2e5", "--delta", "1e-7", "--cohort-sampler", "shuffled_epochs"]
    assert main([*words, "--federated", *budget]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in ("unit: client", "adjacency: zero-out", "at delta", "at most once in each epoch", "twice the people"):
        assert part in said
    assert main([*words, "--federated", *budget, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["training"]
    assert found["guarantee"]["epsilon"] <= 4
    assert found["cohort_size"] * found["rounds"] == found["client_trainings"] <= 2e5
    for wrong, message in (
        ([*words, "--federated", *budget, "--compute", "1e9"], "compute is 1000000000.0, which does nothing with"),
        ([*words, *budget], "people is 1000000.0, which does nothing without --federated"),
        ([*words, "--compute", "1e9", "--examples", "100"], "is of federated runs; give --federated"),
        ([*words, "--federated", "--people", "0"], "people is 0.0, but must be at least 1"),
    ):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err


@pytest.mark.long
def test_from_runs_to_a_plan(tmp_path, capsys):
    for model, parameters in (("transformer_1x32", 13_536), ("transformer_2x64", 100_000)):
        for number, noise in enumerate((0.0, 0.04, 0.4, 4.0)):
            losses = [3 + 2e3 / parameters + 2 / (1 + done) ** 0.5 + noise / 4 for done in range(64)]
            said = {"summary": {"parameters": parameters}, "model": model, "rounds": 64}
            recorded_run(tmp_path / "runs" / model / str(number), noise=noise, losses=losses, **said)
    measured, laws = tmp_path / "measured.parquet", tmp_path / "laws.json"
    assert main(["laws", "import", str(tmp_path / "runs"), "--out", str(measured)]) == 0
    assert main(["laws", "fit", str(measured), "--draws", "0", "--forms", "--out", str(laws)]) == 0
    capsys.readouterr()
    budget = ["--people", "1e5", "--client-trainings", "3000", "--rounds-at-most", "64", "--epsilon", "8"]
    assert main(["laws", "plan", "--federated", "--laws", str(laws), *budget, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["training"]
    assert found["mechanism"] == "tree"
    assert found["rounds"] <= 64
    assert found["guarantee"]["epsilon"] <= 8
    truth = 3 + 2e3 / found["parameters"] + 2 / found["rounds"] ** 0.5 + found["noise_batch_ratio"]
    assert found["loss"] == pytest.approx(truth, rel=0.05)


def test_a_plan_is_written_out_as_options_of_fedlm_simulate(tmp_path, capsys):
    path, file = tmp_path / "laws.json", tmp_path / "planned.toml"
    task = {"tree_restart_every": 64, "server_optimizer": "fedyogi"}
    write_laws(laws_of("tree", **task, noise_seed="experiment", noise_cohort_size=9000, seed=7), path)
    words = ["laws", "plan", "--laws", str(path), "--epsilon", "4", "--federated", "--people", "1e6", "--delta", "1e-7"]
    asked = [*words, "--client-trainings", "2e5", "--write-config", str(file), "--json"]
    assert main(asked) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)["training"]
    settings = tomllib.loads(file.read_text())
    experiment = compose(Experiment, **settings, data=tmp_path)
    assert (experiment.rounds, experiment.cohorts.cohort_size) == (found["rounds"], found["cohort_size"])
    assert experiment.cohorts.min_separation == found["min_separation"]
    assert (experiment.client_learning_rate, experiment.server_learning_rate) == (0.5, 2**-8)
    assert (experiment.privacy.target_epsilon, experiment.privacy.delta) == (4.0, 1e-7)
    assert experiment.training.server_optimizer == "fedyogi"
    assert experiment.training.update_clip_norm == 0.5
    assert experiment.privacy.tree_restart_every == 64
    # Laws do not say whether noise is secret, nor whose it is.
    assert not {"noise_multiplier", "noise_seed", "noise_cohort_size", "seed"} & settings.keys()
    # No options are written for models that are not known here.
    unknown = dataclasses.replace(SURFACE, models=("elsewhere", "larger"))
    write_laws(dataclasses.replace(laws_of("tree"), surface=unknown), path)
    file.unlink()
    assert main(asked) == 2
    assert "none that can be built here" in capsys.readouterr().err
    assert not file.exists()
