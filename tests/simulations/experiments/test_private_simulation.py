"""Private runs as a whole, on made-up text: what they say, what they keep back, and how they go on."""

import dataclasses
import json
import math
import os
import shutil

import pytest

from fedlm.fl_core.composed_settings import compose, with_changes
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.mechanisms import blt
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.promise.plan import CLIENT
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.fl_core.runs.private_releases import BegunRun
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.experiments import simulated_run
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.experiments.preparation import prepare
from tests.simulations.data.made_up_store import import_made_up
from tests.support.plain_runs import PUBLIC, StopError, run, run_until

pytestmark = pytest.mark.usefixtures("plain_cohorts")

BLT = (0.9, 0.4, 0.2, 0.15)
TREE = {"privacy": "tree", "cohort_sampler": "min_separation", "min_separation": 3, "max_participations": 2}
PRIVATE_ROW = {"clipped_fraction", "clip_norm", "noise_norm", "signal_to_noise"}
QUANTILES = ("update_norm_p10", "update_norm_p50", "update_norm_p90")


@pytest.fixture(autouse=True, scope="module")
def quick_blt():
    """Optimizing the matrix takes half a minute, and is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blt.Blt, "coefficients", lambda *_: BLT)
        yield


@pytest.fixture
def settings(small_store):
    return settings_of(small_store)


def settings_of(store):
    return PUBLIC | {
        "data": store,
        "rounds": 6,
        "evaluate_every": 2,
        "checkpoint_every": 2,
        "noise_multiplier": 1.0,
        **TREE,
    }


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def without_times(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def ledger_of(out):
    return PrivacyLedger(out / "privacy" / "ledger.jsonl")


@pytest.mark.parametrize(("noise_seed", "secret"), [("entropy", True), ("experiment", False)])
def test_who_takes_part_and_what_clients_shuffle_by_are_secret_where_one_more_would_give_all_others_new_numbers(
    settings, tmp_path, monkeypatch, noise_seed, secret
):
    plans = []

    class Stops:
        def announce(self, plan):
            plans.append(plan)

        def run(self, *arguments):
            raise StopError

    monkeypatch.setattr(simulated_run, "_engine", lambda *arguments: Stops())
    del settings["min_separation"], settings["max_participations"]
    settings |= {"privacy": "gaussian", "cohort_sampler": "poisson", "cohort_size": 20, "noise_seed": noise_seed}
    for out in ("one", "other"):
        with pytest.raises(StopError):
            run_experiment(compose(Experiment, **settings), tmp_path / out)
    # Of 20 expected clients: two draws are equal less than once in a billion times.
    assert (plans[0].clients.tolist() != plans[1].clients.tolist()) == secret
    known = RoundPlan(1, plans[0].clients, 0, plans[0].learning_rate)
    for draw in (lambda plan: plan.shuffling(3).permutation(50).tolist(), lambda plan: str(plan.upload_key())):
        drawn = {json.dumps(draw(plan)) for plan in (known, *plans)}
        assert len(drawn) == (3 if secret else 1)
    assert all(str(plan.secret) not in repr(plan) for plan in plans if secret)


@pytest.mark.parametrize(
    ("without_users", "unit"),
    [
        (False, "client: all examples of one client, in all rounds;"),
        (True, "client: one document, in all rounds (the data set was imported without users: "),
    ],
)
def test_a_client_is_called_what_the_data_set_says_that_it_is(settings, tmp_path, without_users, unit):
    store = shutil.copytree(settings["data"], tmp_path / "store")
    header = json.loads((store / "store.json").read_text())
    assert header["without_users"] is False
    (store / "store.json").write_text(json.dumps(header | {"without_users": without_users}))
    privacy = prepare(compose(Experiment, **settings | {"data": store})).privacy
    plan = privacy.plan().plan
    said = account(plan, 1e-5).sentence()
    assert f"; unit: {unit}" in said
    assert ("per document, not per user" in said) == without_users
    # What a run has promised when it was begun is what it goes on with.
    earlier = BegunRun(dataclasses.replace(plan, unit=CLIENT), privacy.beside.origins)
    assert privacy.plan(earlier).plan == earlier.plan


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_ends_with_a_statement(settings, mechanism, tmp_path):
    special = {
        "tree_honaker": {"cohort_sampler": "shuffled_epochs"},
        "banded": {"bands": 2},
        "gaussian": {"cohort_sampler": "poisson"},
    }
    settings |= {"privacy": mechanism, **special.get(mechanism, {})}
    if settings["cohort_sampler"] != "min_separation":
        del settings["min_separation"], settings["max_participations"]
    summary = run(settings, tmp_path)
    adjacency = "add-or-remove" if settings["cohort_sampler"] == "poisson" else "zero-out"
    guarantee = summary["privacy_guarantee"]
    assert guarantee["unit"].startswith("client")
    assert guarantee["adjacency"].startswith(adjacency)
    assert (guarantee["mechanism"], guarantee["rounds"]) == (mechanism, 6)
    for words in (
        f"epsilon = {rounded_up(guarantee['epsilon'])}",
        "delta = ",
        "unit: client",
        f"adjacency: {adjacency}",
    ):
        assert words in summary["privacy"]
    assert "NOT PRIVATE" not in summary["privacy"]
    rows = rows_of(tmp_path)
    assert [row["round"] for row in rows] == list(range(6))
    for row in rows:
        assert row.keys() >= PRIVATE_ROW
        assert row["clip_norm"] == pytest.approx(0.1)
        assert row["noise_norm"] > 0
        if row["clients"]:
            assert row["clipped_fraction"] == row["clients_clipped"] / (row["clients"] - row["clients_dropped"])
            assert row["signal_to_noise"] > 0
            low, middle, high = (row[name] for name in QUANTILES)
            assert 0 < low <= middle <= high
    assert state(ledger_of(tmp_path)).own.as_json() == guarantee
    if settings["cohort_sampler"] == "min_separation":
        took_part = summary["participation"]
        assert took_part["planned"] == {"max_participations": 2, "min_separation": 3}
        assert 1 <= took_part["realised"]["max_participations"] <= 2
        assert (took_part["realised"]["min_separation"] or 3) >= 3
        assert took_part["realised"]["clients"] <= 36
    else:
        assert ("participation" in summary) == (settings["cohort_sampler"] == "shuffled_epochs")
    assert parameters_digest(open_model(tmp_path).params) == summary["parameters_sha256"]


def test_the_target_epsilon_and_the_delta_of_the_clients_are_kept(settings, tmp_path):
    settings |= {"noise_multiplier": None, "target_epsilon": 3.0, "rounds": 2}
    guarantee = run(settings, tmp_path)["privacy_guarantee"]
    assert guarantee["epsilon"] <= 3
    assert guarantee["epsilon"] == pytest.approx(3, rel=1e-4)
    clients = len(TokenStore.open(settings["data"]).split("train").client_ids)
    assert guarantee["delta"] == pytest.approx(clients**-1.1)


@pytest.mark.parametrize("mechanism", ["tree", "skellam"])
def test_repeatable_noise_repeats_and_is_not_private(settings, tmp_path, mechanism):
    settings |= {"noise_seed": "experiment", "privacy": mechanism}
    whole = run(settings, tmp_path / "whole")
    assert whole["privacy"].startswith("NOT PRIVATE")
    assert whole["privacy_guarantee"] is None
    run_until(3, settings, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "summary.json").exists()
    resumed = run(settings, tmp_path / "stopped")
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]
    assert without_times(rows_of(tmp_path / "stopped")) == without_times(rows_of(tmp_path / "whole"))
    other_seed = run(settings, tmp_path / "other", seed=1)
    assert other_seed["parameters_sha256"] != whole["parameters_sha256"]


def test_masks_change_no_number_of_a_run(settings, tmp_path):
    settings |= {"noise_seed": "experiment", "privacy": "skellam", "rounds": 1}
    plain, masked = (run(settings, tmp_path / str(on), masks=on) for on in (False, True))
    assert masked["parameters_sha256"] == plain["parameters_sha256"]
    assert without_times(rows_of(tmp_path / "True")) == without_times(rows_of(tmp_path / "False"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cohort_size": 65}, "needs 3 to 64 clients in a round, but cohort_size is 65"),
        ({"least_survivors": 2}, "of whom 2 suffice"),
        ({"privacy": "tree"}, "does nothing with privacy tree"),
    ],
)
def test_masks_that_cannot_be_are_refused(settings, changes, words):
    with pytest.raises(ConfigurationError, match=words):
        compose(Experiment, **settings | {"privacy": "skellam", "masks": True} | changes)


@pytest.fixture(scope="module")
def repeatable(small_store, quick_blt, plain_cohorts, tmp_path_factory):
    """An experiment whose noise repeats, the summary of its run, and the folder."""
    experiment = compose(Experiment, **settings_of(small_store) | {"privacy": "blt"}, noise_seed="experiment")
    out = tmp_path_factory.mktemp("repeatable")
    return experiment, run_experiment(experiment, out), out


@pytest.mark.parametrize("rounds", [2, 4])
def test_repeatable_noise_repeats_although_a_checkpoint_was_lost(repeatable, rounds, tmp_path, monkeypatch):
    experiment, whole, out = repeatable
    real = RunFolder.save

    def save(self, done, *others):
        if done == rounds:
            raise StopError
        real(self, done, *others)

    monkeypatch.setattr(RunFolder, "save", save)
    with pytest.raises(StopError):
        run_experiment(experiment, tmp_path / "stopped")
    monkeypatch.setattr(RunFolder, "save", real)
    assert ledger_of(tmp_path / "stopped").open_intent.rounds == rounds
    # Also where it ended before its first checkpoint, a run has its secret already.
    with pytest.raises(CheckpointError, match="noise_seed was experiment and is now entropy"):
        run_experiment(with_changes(experiment, noise_seed="entropy"), tmp_path / "stopped")
    resumed = run_experiment(experiment, tmp_path / "stopped")
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]
    assert without_times(rows_of(tmp_path / "stopped")) == without_times(rows_of(out))
    assert ledger_of(tmp_path / "stopped").records == ledger_of(out).records


def test_secret_noise_differs_and_its_secret_is_nowhere_else(settings, tmp_path):
    settings["rounds"], digests = 2, set()
    for name in ("one", "two"):
        digests.add(run(settings, tmp_path / name)["parameters_sha256"])
        (secret_file,) = (tmp_path / name / "privacy").glob("noise-secret-*")
        secret = secret_file.read_bytes()
        assert len(secret) == 32
        assert secret_file.stat().st_mode & 0o077 == 0
        for path in (tmp_path / name).rglob("*"):
            if path.is_file() and path != secret_file:
                content = path.read_bytes()
                assert secret not in content
                assert secret.hex().encode() not in content.lower()
    assert len(digests) == 2


@pytest.mark.parametrize("begun_by_others", [False, True])
def test_the_folder_is_its_owners_alone(settings, begun_by_others, tmp_path):
    """Also where it was there with wider rights."""
    out = tmp_path / "out"
    before = os.umask(0o022)
    try:
        if begun_by_others:
            for name in ("checkpoints", "tensorboard"):
                (out / name).mkdir(parents=True)
            (out / "metrics.jsonl").write_text("")
        run_until(3, settings, out)
        during = out.stat().st_mode
        run(settings, out)
        public = {"privacy": "none", "noise_multiplier": None, "rounds": 1}
        run(settings | public, tmp_path / "public")
    finally:
        os.umask(before)
    assert during & 0o777 == 0o700
    for path in (out, *out.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (tmp_path / "public" / "summary.json").stat().st_mode & 0o044


def test_an_empty_cohort_still_releases_noise(settings, tmp_path):
    settings |= {"privacy": "gaussian", "cohort_sampler": "poisson", "cohort_size": 1, "seed": 1}
    del settings["min_separation"], settings["max_participations"]
    run(settings, tmp_path, noise_seed="experiment")
    empty = [row for row in rows_of(tmp_path) if row["cohort"] == 0]
    assert empty, "choose another seed: every cohort had somebody"
    assert all(row["noise_norm"] > 0 and row["clipped_fraction"] is None for row in empty)


def test_a_begun_run_keeps_its_plan(settings, tmp_path):
    run(settings, tmp_path, rounds=2)
    before = (tmp_path / "privacy" / "ledger.jsonl").read_bytes()
    for changes in ({"noise_multiplier": 2.0}, {"rounds": 8}, {"delta": 1e-3}, {"privacy": "gaussian"}):
        with pytest.raises(CheckpointError, match=r"rounds was 2 and is now 8|other settings"):
            run(settings | {"rounds": 2} | changes, tmp_path)
        assert (tmp_path / "privacy" / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": "magic"}, "privacy is 'magic'"),
        ({"privacy": "none"}, "noise_multiplier is 1.0, which does nothing without privacy"),
        *(
            ({"privacy": "none", "noise_multiplier": None, name: value}, f"{name} is .*nothing without privacy")
            for name, value in (("target_epsilon", 1.0), ("delta", 1e-6), ("bands", 2), ("noise_seed", "experiment"))
        ),
        ({"privacy": "gaussian", "tree_restart_every": 4}, "tree_restart_every .*with the privacy mechanism gaussian"),
        ({"privacy": "blt", "tree_complete": True}, "tree_complete .*with the privacy mechanism blt"),
        ({"bands": 2}, "bands is 2.*with the privacy mechanism tree"),
        ({"clip_quantile_rate": 0.1}, "clip_quantile_rate .*without clip_quantile"),
        ({"clip_count_noise": 1.0}, "clip_count_noise .*without clip_quantile"),
        ({"cohort_sampler": "uniform", "min_separation": 1, "max_participations": None}, "no sound analysis"),
        ({"update_clip_norm": None}, "privacy needs update_clip_norm"),
        ({"weighting": "examples"}, "all clients must weigh the same"),
        ({"noise_multiplier": None}, "exactly one of .*none"),
        ({"target_epsilon": 1.0}, "exactly one of"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"noise_multiplier": math.inf}, "noise_multiplier is inf"),
        ({"noise_multiplier": None, "target_rho": -1.0}, "target_rho is -1.0"),
        ({"noise_multiplier": None, "target_epsilon": math.nan}, "target_epsilon is nan"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"report_goal": 0}, "report_goal is 0"),
        ({"cohort_sampler": "poisson", "min_separation": 1, "max_participations": None}, "analysis of the two"),
    ],
    ids=str,
)
def test_settings_that_break_a_guarantee_or_do_nothing_are_refused(settings, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        compose(Experiment, **settings | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_participations": 1, "rounds": 100}, "max_participations"),
        ({"tree_complete": True}, "does nothing without restart_every"),
        ({"clip_quantile": 0.5}, "clip norm may change only where a tree restarts"),
        ({"clip_quantile": 0.5, "privacy": "banded", "bands": 2}, "clip norm may change only where a tree restarts"),
        ({"clip_quantile": 0.5, "privacy": "gaussian", "clip_count_noise": 0.0}, "clip_count_noise is 0.0"),
        ({"clip_quantile": 1.5, "privacy": "gaussian"}, "clip_quantile is 1.5"),
        ({"clip_quantile": 0.5, "privacy": "gaussian", "clip_count_noise": 0.5}, "clip_count_noise is 0.5"),
        ({"privacy": "banded", "bands": 7}, "bands is 7"),
        ({"tree_restart_optimizer": True}, "restarting the optimizer"),
    ],
    ids=str,
)
def test_plans_without_a_sound_analysis_are_refused_before_a_round_runs(settings, changes, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        run(settings | changes, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.jsonl"))


def test_parameters_of_something_else_are_refused(settings, tmp_path):
    public = settings | {"privacy": "none", "noise_multiplier": None, "rounds": 1}
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        run(public, tmp_path / "out", init_from=tmp_path / "nothing")
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        run(public, tmp_path / "out", init_from=tmp_path / "begun")
    run(public, tmp_path / "run")
    import_made_up(tmp_path / "other")
    with pytest.raises(CheckpointError, match="trained on another vocabulary"):
        run(public, tmp_path / "out", data=tmp_path / "other", init_from=tmp_path / "run")
