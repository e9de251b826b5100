"""Where a deployment goes on after it was stopped; its clients are random numbers, and there is no network."""

import contextlib
import dataclasses
import json
import os
import shutil

import jax
import numpy as np
import pytest

from fedlm.fl_core.deployment.operations.privacy_budget import PrivacyBudget
from fedlm.fl_core.deployment.secure_aggregation.attempt import SecureAttempt
from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.server.round_rules import DrainedError
from fedlm.fl_core.deployment.server.training import DeployedTraining
from fedlm.fl_core.deployment.state.state import AttemptRecord, SeenClient, StateError
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger
from fedlm.fl_core.rounds.aggregation import empty_aggregate
from fedlm.fl_core.rounds.round_loop import CohortResult
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.fl_core.runs.run_folder import RunFolder
from tests.deployment import small_deployment as small
from tests.support import secure_cohorts
from tests.support.exact_totals import exact_total


class RandomSums:
    """A `CohortRunner` that never comes to the same sums twice, and drains after so many rounds."""

    def __init__(self, state, drain_after=99, exact=False):
        self.exact = exact
        self.rng, self.state, self.left, self.rounds = np.random.default_rng(), state, drain_after, []

    def announce(self, plan):
        pass

    def run(self, params, plan, clip_norm=None, memory=()):
        if not self.left:
            raise DrainedError
        self.left -= 1
        self.rounds.append(plan.round_number)
        token = os.urandom(8).hex()
        attempt = AttemptRecord(token, plan.round_number, "finished", "", 0.0, 1.0, 1, 1, 0, 0, 1, 1)
        self.state.record_attempt(attempt, [plan.round_number])
        aggregate = jax.tree_util.tree_map(
            lambda leaf: self.rng.normal(size=leaf.shape).astype(np.float32), empty_aggregate(params)
        )
        if self.exact:
            aggregate = aggregate._replace(delta=exact_total(aggregate.delta, clip_norm))
        one = np.float32(1)
        return CohortResult(aggregate._replace(weight=one, clients=one, dropped=np.float32(0)), 1, 1, 1)


def go_on(out, settings, drain_after=99, url=None, meanwhile=lambda row: None, score=None):
    """Run until the end or until drained, doing something after each round; returns which rounds were run."""
    with RunFolder(out) as folder, contextlib.closing(SqlState(url or sqlite_url(out / DATABASE_FILE))) as state:
        state.record_check_ins([SeenClient(one, f"client{one}", "", 1, 0.0) for one in range(20)])
        training = DeployedTraining(dataclasses.replace(small.task(settings), score=score), folder, state)
        runner = RandomSums(state, drain_after, settings.aggregation_rules().exact)
        over = training.run(runner, meanwhile, lambda: False)
        assert over == (drain_after == 99)
    return runner.rounds


def test_a_drained_run_loses_no_round(tmp_path):
    settings = small.deployment(rounds=7, checkpoint_every=100)
    assert go_on(tmp_path, settings, drain_after=3) == [0, 1, 2]
    assert go_on(tmp_path, settings, drain_after=0) == []
    assert go_on(tmp_path, settings) == [3, 4, 5, 6]
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == 7


def test_no_score_of_people_who_may_be_trained_on_ends_a_private_run(tmp_path):
    settings = small.deployment(**small.PRIVACY | {"noise_seed": "entropy"}, rounds=4, evaluate_every=1)
    assert go_on(tmp_path, settings, score=lambda params: {"heldout_loss": None}) == [0, 1, 2, 3]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "diverged", "it is said once it is over"


@pytest.mark.parametrize("noise_seed", ["entropy", "experiment"])
def test_a_model_that_was_lost_while_it_was_written_counts_as_released(tmp_path, noise_seed, monkeypatch):
    settings = small.deployment(**small.PRIVACY | {"noise_seed": noise_seed}, rounds=6)
    real = Checkpoints.save

    def save(self, rounds, state, about):
        if rounds == 3:
            raise OSError("no space left on device")
        real(self, rounds, state, about)

    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(OSError, match="no space"):
        go_on(tmp_path, settings)
    monkeypatch.setattr(Checkpoints, "save", real)
    assert go_on(tmp_path, settings)[0] == 3
    ledger = PrivacyLedger(tmp_path / "privacy/ledger.jsonl")
    assert [first for first, _ in ledger.generations] == [0, 3]
    with contextlib.closing(SqlState(sqlite_url(tmp_path / DATABASE_FILE))) as state:
        took_part = {client.number for client in state.clients() if client.participations}
    assert took_part == {0, 1, 2, *range(3, ledger.last_release.rounds)}, (
        "who took part in the lost round was forgotten"
    )


def test_a_database_that_is_an_older_copy_is_refused(tmp_path):
    settings = small.deployment(**small.PRIVACY | {"noise_seed": "entropy"}, rounds=6)
    go_on(tmp_path, settings, drain_after=2)
    shutil.copy(tmp_path / DATABASE_FILE, tmp_path / "copy")
    go_on(tmp_path, settings, drain_after=2)
    (tmp_path / "copy").replace(tmp_path / DATABASE_FILE)
    with pytest.raises(StateError, match="released 4 rounds, but its database knows of 2"):
        go_on(tmp_path, settings)
    (tmp_path / DATABASE_FILE).unlink()
    with pytest.raises(StateError, match="knows of 0"):
        go_on(tmp_path, settings)


@pytest.mark.long
@pytest.mark.parametrize("privacy", [{}, small.PRIVACY | {"noise_seed": "entropy"}], ids=["plain", "private"])
def test_of_two_copies_of_a_folder_with_one_database_the_second_is_noticed(tmp_path, database_url, privacy):
    settings = small.deployment(**privacy, rounds=9, checkpoint_every=1)
    go_on(tmp_path / "run", settings, 2, database_url)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(CheckpointError, match="which is still there"):
        go_on(tmp_path / "copy", settings, 1, database_url)
    assert go_on(tmp_path / "run", settings, 2, database_url) == [2, 3]
    # As where the copy is on another machine.
    (tmp_path / "run").rename(tmp_path / "hidden")
    with contextlib.closing(SqlState(database_url)) as state:
        before = state.clients()
    with pytest.raises(CheckpointError, match="has gone on in a copy of this folder"):
        go_on(tmp_path / "copy", settings, 1, database_url)
    with contextlib.closing(SqlState(database_url)) as state:
        assert state.clients() == before, "who took part was forgotten"
    (tmp_path / "hidden").rename(tmp_path / "run")

    def fork(row):
        if row["round"] == 5:
            shutil.copytree(tmp_path / "run", tmp_path / "fork")
            (tmp_path / "run").rename(tmp_path / "hidden")
            assert go_on(tmp_path / "fork", settings, 0, database_url) == []
            (tmp_path / "hidden").rename(tmp_path / "run")

    with pytest.raises(CheckpointError, match="has gone on in a copy of this folder"):
        go_on(tmp_path / "run", settings, url=database_url, meanwhile=fork)
    # A round without privacy is seen before it is saved.
    saved = [int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert max(saved) == (6 if privacy else 5)


def test_a_folder_of_other_settings_or_without_its_privacy_is_refused(tmp_path):
    settings = small.deployment(**small.PRIVACY, rounds=6)
    go_on(tmp_path, settings, drain_after=2)
    with pytest.raises(CheckpointError, match="client_learning_rate was"):
        go_on(tmp_path, small.deployment(**small.PRIVACY, rounds=6, client_learning_rate=0.4))
    with pytest.raises(CheckpointError, match="private run"):
        go_on(tmp_path, small.deployment(rounds=6))
    with pytest.raises(CheckpointError, match="another privacy plan"):
        go_on(tmp_path, small.deployment(**small.PRIVACY, rounds=8))


def test_a_finished_plan_is_given_no_more_rounds(tmp_path):
    private = small.PRIVACY | {"noise_seed": "entropy"}
    go_on(tmp_path, small.deployment(**private, rounds=2))
    before = (tmp_path / "privacy/ledger.jsonl").read_bytes()
    with pytest.raises(LedgerError, match=r"rounds was 2 and is now 4.*init_from .* and another out"):
        go_on(tmp_path, small.deployment(**private, rounds=4))
    assert (tmp_path / "privacy/ledger.jsonl").read_bytes() == before


def test_a_run_goes_on_when_the_folder_of_its_first_parameters_is_gone(tmp_path):
    private = small.PRIVACY | {"noise_seed": "entropy"}
    go_on(tmp_path / "first", small.deployment(**private, rounds=1))
    settings = small.deployment(**private, rounds=4, init_from=tmp_path / "first")
    go_on(tmp_path / "second", settings, drain_after=2)
    shutil.rmtree(tmp_path / "first")
    assert go_on(tmp_path / "second", settings) == [2, 3]
    summary = json.loads((tmp_path / "second" / "summary.json").read_text())
    assert [phase["steps"] for phase in summary["ancestry"]] == [1]
    assert "composed with 1 releases" in summary["privacy"]
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        go_on(tmp_path / "third", settings)


def test_what_first_parameters_went_through_is_part_of_what_is_stated(tmp_path):
    """Nobody knows who the clients are, so that they may be the same people; only a user can say otherwise."""
    private = small.PRIVACY | {"noise_seed": "entropy", "rounds": 1}
    go_on(tmp_path / "public", small.deployment(rounds=1))
    go_on(tmp_path / "first", small.deployment(**private))
    found = {}
    for name, before in (
        ("of public", {"init_from": tmp_path / "public"}),
        ("said to be public", {"init_from": tmp_path / "public", "initial_data": "public"}),
        ("second", {"init_from": tmp_path / "first"}),
    ):
        settings = small.deployment(**private, **before)
        go_on(tmp_path / name, settings)
        found[name] = json.loads((tmp_path / name / "summary.json").read_text())
        budget = PrivacyBudget(PrivacyLedger(tmp_path / name / "privacy/ledger.jsonl"), secret=True).read()
        assert budget["statement"] == found[name]["privacy"]
        assert budget["private"] == (name != "of public")
        assert (budget["epsilon_spent"] is None) == (name == "of public")
    assert "`fedlm serve`" in found["of public"]["privacy"]
    assert found["of public"]["privacy"].startswith("NOT PRIVATE")
    alone = found["said to be public"]["privacy_guarantee"]["epsilon"]
    assert "public data" in found["said to be public"]["privacy"]
    assert alone < found["second"]["privacy_guarantee"]["epsilon"] < 2 * alone
    with pytest.raises(CheckpointError, match="initial_data was same and is now public"):
        go_on(tmp_path / "of public", small.deployment(**private, init_from=tmp_path / "public", initial_data="public"))


def test_a_folder_that_is_older_than_its_database_is_refused(tmp_path, database_url):
    """It was copied while the server ran, and put back after more had been released: noise would be used twice."""
    settings = small.deployment(**small.PRIVACY | {"noise_seed": "entropy"}, rounds=9)
    run, backup = tmp_path / "run", tmp_path / "backup"

    def back_up(row):
        if row["round"] == 1:
            shutil.copytree(run, backup)

    go_on(run, settings, 4, database_url, back_up)
    shutil.rmtree(run)
    backup.rename(run)
    with pytest.raises(StateError, match="ends with a model of 2 rounds, but its database knows that one of 4"):
        go_on(run, settings, url=database_url)


@pytest.mark.long
def test_a_backup_of_folder_and_database_goes_on_with_what_was_promised(tmp_path):
    """Both were copied after the server was stopped, as the page on deployments says, and the machine was lost."""
    settings, out = small.deployment(**small.PRIVACY | {"noise_seed": "entropy"}, rounds=6), tmp_path / "restored"
    assert go_on(tmp_path / "run", settings, 3) == [0, 1, 2]
    (tmp_path / "run").rename(out)
    assert go_on(out, settings) == [3, 4, 5]
    assert PrivacyLedger(out / "privacy/ledger.jsonl").generations == [(0, 6)]
    with contextlib.closing(SqlState(sqlite_url(out / DATABASE_FILE))) as state:
        took_part = {one.number: one.participations for one in state.clients() if one.participations}
    assert took_part == dict.fromkeys(range(6), 1)


def test_a_secure_sum_without_noise_that_may_have_been_seen_is_not_made_again_after_a_crash(tmp_path):
    secure = {"aggregation": "secure", "update_clip_norm": 0.5, "upload_bits": 32, "weighting": "uniform"}
    settings = small.deployment(**secure, rounds=3)
    assert go_on(tmp_path, settings, drain_after=1) == [0]
    with contextlib.closing(SqlState(sqlite_url(tmp_path / DATABASE_FILE))) as state:
        SecureAttempts(state.database).save(SecureAttempt(secure_cohorts.NAME._replace(round_number=1), charged=True))
    assert go_on(tmp_path, settings) == [2]
