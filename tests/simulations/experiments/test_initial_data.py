"""Runs that begin with the parameters of another: what they may say of the people whose text these were made from."""

import json
import shutil

import numpy as np
import pytest

from fedlm.clients.fleet.population import Population
from fedlm.commands import account as account_command
from fedlm.commands.deployment.fleet_texts import texts_of
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, DataError
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger, Release
from fedlm.fl_core.runs.capabilities.data_budget import BudgetError
from fedlm.fl_core.runs.outcome import stated_privacy
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from tests.simulations.experiments.test_changed_data import write_store
from tests.support.plain_runs import NO_PRIVACY, OTHER_MODEL, PRIVATE, run, run_until

pytestmark = pytest.mark.usefixtures("plain_cohorts")


@pytest.fixture
def settings(small_store):
    # A learning rate this small moves no float32 parameter of ordinary size.
    return PRIVATE | {"data": small_store, "server_learning_rate": 1e-30}


@pytest.fixture
def public(settings):
    return settings | NO_PRIVACY | {"server_learning_rate": 0.01}


def statement_of(folder, capsys):
    assert account_command.COMMAND.main(["ledger", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_private_round_does_not_make_text_private_that_is_in_its_first_parameters(settings, public, tmp_path, capsys):
    first = run(public, tmp_path / "first")
    second = run(settings, tmp_path / "second", init_from=tmp_path / "first")
    assert second["parameters_sha256"] == first["parameters_sha256"]
    assert second["privacy"].startswith("NOT PRIVATE")
    assert "epsilon" not in second["privacy"]
    assert second["privacy_guarantee"] is None
    third = run(settings, tmp_path / "third", init_from=tmp_path / "second")
    assert third["privacy_guarantee"] is None
    for folder in (tmp_path / "second", tmp_path / "third"):
        found = statement_of(folder, capsys)
        assert (found["epsilon"], found["rho"], found["sensitivity"]) == (None, None, None)
        assert "trained without privacy" in found["not_private"]
        assert stated_privacy(folder).startswith("NOT PRIVATE")


def test_what_private_runs_spend_is_composed_over_the_whole_chain(settings, tmp_path, capsys):
    one = run(settings, tmp_path / "1")["privacy_guarantee"]
    assert one["epsilon"] == pytest.approx(gaussian_epsilon(4.0, 1.0, 1e-5))
    for number in (2, 3):
        summary = run(settings, tmp_path / f"{number}", init_from=tmp_path / f"{number - 1}")
        exact = gaussian_epsilon(4.0, np.sqrt(number), 1e-5)
        guarantee = summary["privacy_guarantee"]
        assert exact * (1 - 1e-9) <= guarantee["epsilon"] <= exact * 1.01
        assert guarantee["rho"] == pytest.approx(number / (2 * 16))
        assert guarantee["epsilon"] < number * one["epsilon"]
        assert summary["privacy"].count("composed with") == number - 1
    # What is accounted is in the run's own ledger: the others may be changed, moved or lost.
    (tmp_path / "2" / "summary.json").write_text('{"privacy": "(epsilon = 0)"}')
    shutil.rmtree(tmp_path / "1")
    assert statement_of(tmp_path / "3", capsys)["epsilon"] == guarantee["epsilon"]
    shutil.rmtree(tmp_path / "2")
    assert statement_of(tmp_path / "3", capsys)["epsilon"] == guarantee["epsilon"]


def test_runs_are_composed_each_once(settings, tmp_path, capsys):
    for name, before in (("1", None), ("2", "1"), ("3", "2"), ("other", None)):
        run(settings, tmp_path / name, init_from=before and tmp_path / before)

    def together(*names):
        assert account_command.COMMAND.main(["ledger", *(str(tmp_path / name) for name in names), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    for names, rounds in ((("1", "2"), 2), (("3", "2", "1"), 3), (("3", "other"), 4), (("1", "other"), 2)):
        found = together(*names)
        assert found["epsilon"] == pytest.approx(gaussian_epsilon(4.0, np.sqrt(rounds), 1e-5))
        assert len(found["trainings"]) == rounds
    assert account_command.COMMAND.main(["ledger", str(tmp_path / "1"), str(tmp_path / "other")]) == 0
    assert "training" in capsys.readouterr().out
    # A copy that went on by itself has the same noise over other sums.
    shutil.copytree(tmp_path / "other", tmp_path / "fork")
    assert together("other", "fork")["epsilon"] == pytest.approx(gaussian_epsilon(4.0, 1.0, 1e-5))
    for name in ("other", "fork"):
        ledger = PrivacyLedger(tmp_path / name / "privacy" / "ledger.jsonl")
        ledger.intend(Release(2, f"digest of {name}"))
    found = together("other", "fork")
    assert found["epsilon"] is None
    assert "went on in two places" in found["not_private"]
    with pytest.raises(ConfigurationError, match="there is no run"):
        account_command.COMMAND.main(["ledger", "--json"])
    run(settings, tmp_path / "delta", delta=1e-6)
    with pytest.raises(ConfigurationError, match="different deltas"):
        together("1", "delta")


def test_a_user_may_say_that_the_text_was_public_or_of_others(settings, public, tmp_path, small_store):
    other = write_store(small_store, tmp_path / "other", range(5, 60))
    run(public, tmp_path / "first", data=other)
    alone = gaussian_epsilon(4.0, 1.0, 1e-5)
    for word, said in (("public", "public data"), ("disjoint", "other people")):
        child = run(settings, tmp_path / word, init_from=tmp_path / "first", initial_data=word)
        assert child["privacy_guarantee"]["epsilon"] == pytest.approx(alone)
        assert said in child["privacy"]
        assert any(said in line for line in child["privacy_guarantee"]["assumptions"])
        # The word is remembered by those that go on from there on the same data.
        grandchild = run(settings, tmp_path / f"{word}-2", init_from=tmp_path / word)
        assert said in grandchild["privacy"]
        assert grandchild["privacy_guarantee"]["epsilon"] == pytest.approx(
            gaussian_epsilon(4.0, np.sqrt(2), 1e-5), rel=0.01
        )
    # Those who were other people to one run may be the people of the next, and text is not public to whose it is.
    for word in ("disjoint", "public"):
        back = run(settings, tmp_path / f"back to {word}", init_from=tmp_path / word, data=other)
        assert back["privacy_guarantee"] is None
    third = write_store(small_store, tmp_path / "third", range(60))
    assert run(settings, tmp_path / "open", init_from=tmp_path / "public", data=third)["privacy_guarantee"]
    # Without a word another import may hold the same people, and no word stands against the run's own data.
    assert run(settings, tmp_path / "unsaid", data=third, init_from=tmp_path / "first")["privacy_guarantee"] is None
    for word in ("public", "disjoint"):
        with pytest.raises(ConfigurationError, match="on the very training clients of this run"):
            run(settings, tmp_path / "refused", data=other, init_from=tmp_path / "first", initial_data=word)
        with pytest.raises(ConfigurationError, match="does nothing without init_from"):
            run(settings, tmp_path / "refused", initial_data=word)
    with pytest.raises(ConfigurationError, match="initial_data is 'secret'"):
        run(settings, tmp_path / "refused", init_from=tmp_path / "first", initial_data="secret")


def test_a_target_is_the_total(settings, tmp_path):
    run(settings, tmp_path / "first")
    for target, name in ((("epsilon"), "target_epsilon"), ("rho", "target_rho")):
        goal = {"epsilon": 1.5, "rho": 0.06}[target]
        child = settings | {"noise_multiplier": None, name: goal}
        summary = run(child, tmp_path / target, init_from=tmp_path / "first")
        found = summary["privacy_guarantee"][target]
        assert goal * 0.99 <= found <= goal * (1 + 1e-9)
        assert run(child, tmp_path / f"{target} alone")["noise_multiplier"] < summary["noise_multiplier"]
        with pytest.raises(
            ConfigurationError, match=f"the target {target} for everything together is .* is spent already"
        ):
            run(child | {name: goal / 5}, tmp_path / "spent", init_from=tmp_path / "first")


@pytest.mark.long
def test_central_training_is_composed_where_its_unit_is_a_user(settings, tmp_path):
    central = {name: settings[name] for name in ("model", "data", "length", "delta")}
    central |= {"steps": 2, "batch_size": 4, "noise_multiplier": 1.5, "heldout_examples": 5, "test_examples": 5}
    by_user = run_pretraining(compose(Pretraining, **central, unit="user"), tmp_path / "users")
    run_pretraining(compose(Pretraining, **central), tmp_path / "examples")
    of_users = run(settings, tmp_path / "a", init_from=tmp_path / "users")["privacy_guarantee"]
    alone = gaussian_epsilon(4.0, 1.0, 1e-5)
    assert alone < of_users["epsilon"] <= alone + by_user["privacy_guarantee"]["epsilon"]
    assert (of_users["adjacency"].partition(":")[0], of_users["rho"]) == ("zero-out", None)
    of_examples = run(settings, tmp_path / "b", init_from=tmp_path / "examples")
    assert of_examples["privacy_guarantee"] is None
    assert "whose unit is another" in of_examples["privacy"]
    # The other way round.
    again = compose(Pretraining, **central, unit="user", init_from=tmp_path / "a")
    back = run_pretraining(again, tmp_path / "users again")
    assert back["privacy_guarantee"]["epsilon"] > of_users["epsilon"]
    rows = [json.loads(line) for line in (tmp_path / "users again" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["epsilon"] == pytest.approx(back["privacy_guarantee"]["epsilon"])


def test_only_what_a_private_run_has_released_counts_as_its_own(settings, public, tmp_path):
    moving = {"server_learning_rate": 0.1}
    run(settings, tmp_path / "private", **moving)
    run(public, tmp_path / "public", **moving)
    shutil.copytree(tmp_path / "private", tmp_path / "mixed")
    shutil.rmtree(tmp_path / "mixed" / "checkpoints")
    shutil.copytree(tmp_path / "public" / "checkpoints", tmp_path / "mixed" / "checkpoints")
    with pytest.raises(CheckpointError, match="the ledger of this private run does not name its checkpoint"):
        run(settings, tmp_path / "child", init_from=tmp_path / "mixed")
    # Without its ledger nothing is promised of a private run.
    shutil.copytree(tmp_path / "private", tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "privacy")
    child = run(settings, tmp_path / "of bare", init_from=tmp_path / "bare")
    assert "its ledger is missing" in child["privacy"]
    ledger = tmp_path / "private" / "privacy" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"noise_multiplier": 4.0', '"noise_multiplier": 9.0', 1))
    with pytest.raises(LedgerError, match="does not match its checksum"):
        run(settings, tmp_path / "child", init_from=tmp_path / "private")


def test_what_a_run_began_with_is_kept_when_it_goes_on(settings, public, tmp_path, small_store):
    """The same parameters from a run that promises more do not make the promise better."""
    first = run(public, tmp_path / "public", data=write_store(small_store, tmp_path / "other", range(20)))
    clean = run(settings, tmp_path / "clean", init_from=tmp_path / "public", initial_data="disjoint")
    assert clean["parameters_sha256"] == first["parameters_sha256"]
    assert clean["privacy_guarantee"]
    child = settings | {"rounds": 2, "checkpoint_every": 1}
    run_until(0, child, tmp_path / "child", init_from=tmp_path / "public")
    shutil.move(tmp_path / "public", tmp_path / "moved")
    summary = run(child, tmp_path / "child", init_from=tmp_path / "clean")
    assert summary["rounds"] == 2
    assert summary["privacy_guarantee"] is None
    assert "trained without privacy" in summary["privacy"]


@pytest.mark.parametrize("parent", ["private", "public"])
def test_a_run_with_a_checkpoint_goes_on_when_the_folder_of_its_first_parameters_is_gone(
    settings, public, tmp_path, parent
):
    run(settings if parent == "private" else public, tmp_path / "parent")
    child = settings | {"rounds": 3, "checkpoint_every": 1, "server_learning_rate": 0.1, "noise_seed": "experiment"}
    child |= {"init_from": tmp_path / "parent"}
    whole = run(child, tmp_path / "whole")
    run_until(0, child, tmp_path / "child")
    shutil.rmtree(tmp_path / "parent")
    summary = run(child, tmp_path / "child")
    for name in ("parameters_sha256", "privacy", "ancestry", "experiment"):
        assert json.loads(json.dumps(summary[name])) == json.loads(json.dumps(whole[name]))
    assert summary["initial_parameters"]["parameters_sha256"] == whole["initial_parameters"]["parameters_sha256"]
    # What the parent promised depended on what went before it.
    assert "private" not in summary["initial_parameters"]["privacy"]
    assert run(child, tmp_path / "child") == summary
    # What was never begun has nothing written down, and what was written is of these settings.
    for folder, changes in (("new", {}), ("child", {"audit_canaries": 20})):
        with pytest.raises(CheckpointError, match="not the folder of a run"):
            run(child, tmp_path / folder, **changes)


def test_parameters_of_another_model_of_the_same_shapes_are_refused(settings, public, tmp_path):
    run(public, tmp_path / "first")
    with pytest.raises(CheckpointError, match=r"parameters of another model, .*:UNIGRAM, not .*:OTHER_UNIGRAM"):
        run(public, tmp_path / "second", model=OTHER_MODEL, init_from=tmp_path / "first")


def test_a_data_set_may_carry_a_budget(settings, public, tmp_path, small_store, capsys):
    store = write_store(small_store, tmp_path / "store", range(60))
    settings, public = settings | {"data": store}, public | {"data": store}
    words = ["budget", str(store), "--epsilon", "1.5", "--delta", "1e-5", "--json"]
    assert account_command.COMMAND.main(words) == 0
    assert json.loads(capsys.readouterr().out)["epsilon_budget"] == 1.5
    for number in (1, 2):
        run(settings, tmp_path / f"{number}")
    with pytest.raises(BudgetError, match="with it, epsilon would be"):
        run(settings, tmp_path / "3")
    for changes in (public, settings | {"noise_seed": "experiment"}):
        with pytest.raises(BudgetError, match="only private runs with secret noise"):
            run(changes, tmp_path / "4")
    with pytest.raises(ConfigurationError, match="has a privacy budget, from which a server"):
        texts_of(store, Population())
    assert account_command.COMMAND.main(words[:2]) == 0
    assert "1.35" in capsys.readouterr().out
    with pytest.raises(DataError, match="carries a privacy budget"):
        StoreWriter(store, "other", Tokenizer.load(store / "tokenizer.json"), overwrite=True)
