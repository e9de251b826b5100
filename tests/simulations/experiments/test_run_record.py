import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedlm.commands import account as account_command
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import compose, settings_as_json
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger, Release
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.runs.identity import Fact, RunIdentity
from fedlm.fl_core.runs.outcome import statement_in
from fedlm.fl_core.runs.round_rows import find_divergence
from fedlm.simulations.data.federated_data import ChosenClients, InMemoryData, evaluation_batches, evaluation_owners
from fedlm.simulations.engine.lane_count import choose_lanes
from fedlm.simulations.experiments.configuration import (
    MAY_MOVE,
    Comparison,
    Experiment,
    experiment_of,
)
from fedlm.simulations.experiments.presets import PRESETS
from fedlm.simulations.experiments.simulated_privacy import Privacy


def row(number, dropped=0, **more):
    return {"round": number, "clients": 4, "clients_dropped": dropped, **more}


@pytest.mark.parametrize(
    ("rows", "at"),
    [
        ([], None),
        ([row(0, 4), row(1, 4)], None),
        ([row(0, 4), row(1, 3), row(2, 4)], None),
        ([row(0), row(1, 4), row(2, 4), row(3, 4)], 3),
        ([{"round": number, "clients": 0, "clients_dropped": 0} for number in range(5)], None),
        ([row(0, heldout_loss=None)], 0),
        ([row(0, heldout_loss=3.0)], None),
    ],
)
def test_divergence_is_three_rounds_without_a_finite_update_or_a_loss_that_is_no_number(rows, at):
    found = find_divergence(rows)
    assert (found and found.round_number) == at


@pytest.mark.parametrize(
    ("private", "heldout", "before", "lost", "refusing"),
    [
        (False, "ab", (), True, True),
        (True, "cd", (), True, False),
        (True, "bc", (), False, False),
        # A run that first parameters come from may have been trained on those who are held out here.
        (True, "cd", ("another split",), False, False),
    ],
)
def test_a_private_run_ends_by_nothing_that_those_who_are_trained_on_decide(private, heldout, before, lost, refusing):
    splits = {"train": SimpleNamespace(client_ids=list("ab")), "heldout": SimpleNamespace(client_ids=list(heldout))}
    phases = tuple(SimpleNamespace(training_data_sha256=data, people="same") for data in before)
    beside = SimpleNamespace(origins=SimpleNamespace(ancestry=phases), training_data="this split")
    find = Privacy(None, None, beside, None).find_divergence(splits) if private else find_divergence
    assert (find([row(0, heldout_loss=None)]) is not None) == lost
    assert (find([row(1, 4), row(2, 4), row(3, 4)]) is not None) == refusing


def identity_of(folder, vocabulary="abc", **changes):
    settings = settings_as_json(compose(Experiment, data=folder, model="cifg_tiny", **changes))
    facts = {"vocabulary": Fact(vocabulary, "vocabulary", ("vocabulary_sha256",))}
    return RunIdentity("experiment", settings, facts, MAY_MOVE, ("rounds",))


def finished_summary(folder, **changes):
    return identity_of(folder, **changes).finished_summary(folder, "rounds")


def test_only_the_summary_of_the_same_settings_counts(tmp_path):
    assert finished_summary(tmp_path) is None
    write_atomically(tmp_path / "summary.json", json.dumps({"experiment": identity_of(tmp_path / "moved").settings}))
    assert finished_summary(tmp_path) is not None
    assert finished_summary(tmp_path, seed=1) is None
    assert finished_summary(tmp_path, rounds=101) is None, "there are rounds left to run"
    for text, message in (
        ("[1", "not a summary"),
        ("{}", "not a summary"),
        ("3", "not a summary"),
        ('{"pretraining": {}, "status": "finished"}', "holds a run of another kind"),
    ):
        write_atomically(tmp_path / "summary.json", text)
        with pytest.raises(CheckpointError, match=message):
            finished_summary(tmp_path)


def test_a_finished_run_says_of_its_privacy_what_its_ledger_says(tmp_path):
    summary = {"experiment": identity_of(tmp_path).settings, "vocabulary_sha256": "abc"}
    write_atomically(tmp_path / "summary.json", json.dumps(summary))
    assert finished_summary(tmp_path) == summary
    assert finished_summary(tmp_path, vocabulary="abd") is None
    lie = {"privacy": "(epsilon = 0.1, ...", "privacy_guarantee": {"epsilon": 0.1}}
    write_atomically(tmp_path / "summary.json", json.dumps(summary | lie))
    without = finished_summary(tmp_path)
    assert (without["privacy"], without["privacy_guarantee"]) == ("NOT PRIVATE: its ledger is missing", None)
    begin_ledger(tmp_path)
    found = finished_summary(tmp_path)
    assert found["privacy_guarantee"]["epsilon"] == gaussian_epsilon(4.0, 2.0, 1e-5)
    assert "epsilon = 0.1," not in found["privacy"]


def test_nothing_is_stated_by_a_ledger_that_ends_before_the_newest_checkpoint(tmp_path):
    begin_ledger(tmp_path)
    stated = statement_in(tmp_path)
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    assert statement_in(tmp_path) == stated
    (tmp_path / "checkpoints" / "8").mkdir()
    with pytest.raises(LedgerError, match="ends with 4 rounds, but there is a checkpoint of 8: the ledger was cut off"):
        statement_in(tmp_path)
    for given in (tmp_path, tmp_path / "privacy", tmp_path / "privacy" / "ledger.jsonl"):
        with pytest.raises(LedgerError, match="the ledger was cut off"):
            account_command.COMMAND.main(["ledger", str(given)])


def begin_ledger(folder):
    (folder / "privacy").mkdir()
    ledger = PrivacyLedger(folder / "privacy" / "ledger.jsonl")
    ledger.begin(PrivacyPlan("gaussian", 8, 4.0, BoundedParticipation(None, 1)), 1e-5, "commitment", {})
    ledger.intend(Release(4, "digest"))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    found = identity_of(tmp_path / "moved").about()
    identity_of(tmp_path, rounds=5).check(found, tmp_path)
    identity_of(tmp_path).check(
        found | {"experiment": {**found["experiment"], "client_gradient_norms": True}}, tmp_path
    )
    with pytest.raises(CheckpointError, match="seed was 0 and is now 1"):
        identity_of(tmp_path, seed=1).check(found, tmp_path)
    with pytest.raises(CheckpointError, match="another vocabulary"):
        identity_of(tmp_path, vocabulary="abd").check(found, tmp_path)
    with pytest.raises(CheckpointError, match="another kind"):
        identity_of(tmp_path).check({"pretraining": {}, "vocabulary": "abc"}, tmp_path)


@pytest.mark.parametrize(("limit", "expected"), [(None, 24), (10, 10), (100, 24)])
def test_evaluation_takes_every_example_once_up_to_the_limit_and_each_process_its_rows(limit, expected):
    sizes = (5, 0, 11, 7, 1)
    data = InMemoryData([np.full((n, 4), 100 * c) + np.arange(n)[:, None] for c, n in enumerate(sizes)])
    whole = list(evaluation_batches(data, 3, 6, max_examples=limit))
    assert all(batch.tokens.shape == (6, 4) for batch in whole)
    seen = [int(row[0]) for batch in whole for row, weight in zip(batch.tokens, batch.weight, strict=True) if weight]
    assert len(seen) == len(set(seen)) == expected
    owners = evaluation_owners(data, limit)
    assert owners.tolist() == [example // 100 for example in seen], "clients in the order of rows"
    for own in (range(2), range(2, 5), range(5, 6)):
        parts = list(evaluation_batches(data, 3, 6, max_examples=limit, own_rows=own))
        assert len(parts) == len(whole)
        for part, batch in zip(parts, whole, strict=True):
            np.testing.assert_array_equal(part.tokens, batch.tokens[own.start : own.stop])
            np.testing.assert_array_equal(part.weight, batch.weight[own.start : own.stop])


def test_chosen_clients_are_those_of_the_whole():
    data = InMemoryData([np.full((n, 4), n) for n in (5, 0, 11, 7)])
    some = ChosenClients(data, np.array([3, 0]))
    assert some.num_examples.tolist() == [7, 5]
    assert some.sequences(0).tolist() == data.sequences(3).tolist()
    assert some.sequences(1, np.array([2, 2])).shape == (2, 4)


def test_settings_are_read_back_from_their_record():
    experiment = compose(Experiment, data=Path("x"), model="cifg_tiny", relevance=Path("y"))
    record = json.loads(json.dumps(settings_as_json(experiment)))
    assert experiment_of(record) == experiment
    with pytest.raises(ConfigurationError, match="later"):
        experiment_of(record | {"later": 1})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_comparisons(name):
    compose(Comparison, data=".", **PRESETS[name]).experiments()


EQUAL = np.full(1000, 10)


class FakeGpu:
    platform = "gpu"

    def __init__(self, limit):
        self.limit = limit

    def memory_stats(self):
        return {"bytes_limit": self.limit} if self.limit else None


def test_an_accelerator_has_as_many_lanes_as_memory_and_cohort_allow_and_a_cpu_core_one():
    assert choose_lanes(10**6, 500, EQUAL) == 1
    assert choose_lanes(19_000_000, 500, EQUAL, devices=[FakeGpu(80e9)]) == 105
    assert choose_lanes(19_000_000, 20, EQUAL, devices=[FakeGpu(80e9)]) == 10
    assert choose_lanes(19_000_000, 20, EQUAL, devices=[FakeGpu(80e9)] * 4) == 3
    assert choose_lanes(19_000_000, 500, EQUAL, devices=[FakeGpu(80e9)], more_copies=6) == 52
    assert choose_lanes(19_000_000, 500, EQUAL, devices=[FakeGpu(1e6)]) == 1
    assert choose_lanes(19_000_000, 500, EQUAL, devices=[FakeGpu(None)]) == 8
    # Nor more than the longest client leaves work for: a cohort of 100 has 20.8 steps for each client on average, and
    # nearly always a client of 100 steps.
    uneven = np.where(np.arange(1000) < 200, 100, 1)
    assert choose_lanes(10**6, 100, uneven, devices=[FakeGpu(80e9)]) == 21
    assert choose_lanes(10**6, 100, uneven, devices=[FakeGpu(80e9)] * 2) == 11
    assert choose_lanes(10**6, 100, np.zeros(10, int), devices=[FakeGpu(80e9)]) == 1


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    with run_lock(tmp_path), pytest.raises(ConfigurationError, match="another process"), run_lock(tmp_path, 0.2):
        pass
    with run_lock(tmp_path, 0.2):
        pass
