"""`fedlm release`: what may be published of a run, and nothing else."""

import dataclasses
import json
import math
import re
import shutil

import jax
import numpy as np
import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.origins.ancestry import as_records, recorded_ancestry
from fedlm.fl_core.privacy.origins.vocabulary_origin import origin_of_import
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.fl_core.runs.statements.publishing import PAGE_FILE, load_published
from fedlm.fl_core.runs.statements.statement_check import check_statement
from fedlm.fl_core.runs.statements.statement_reading import read_statement
from fedlm.models.registry import create_model
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from tests.support.plain_runs import MODEL


@pytest.fixture(scope="module")
def runs(small_store, tmp_path_factory, plain_cohorts):
    """A private run, one that begins with its parameters, and one that is not private."""
    folder = tmp_path_factory.mktemp("runs")
    small = {"model": MODEL, "data": small_store, "length": 8}
    small |= {"rounds": 1, "cohort_size": 6, "client_max_batches": 2, "heldout_examples": 20, "test_examples": 20}
    noise = {"privacy": "gaussian", "noise_multiplier": 4.0, "update_clip_norm": 0.1, "delta": 1e-5}
    private = small | noise | {"cohort_sampler": "min_separation"}
    run_experiment(compose(Experiment, **private), folder / "private")
    run_experiment(compose(Experiment, **private, init_from=folder / "private"), folder / "second")
    run_experiment(compose(Experiment, **small), folder / "public")
    return folder


def release(fedlm_here, *words):
    result = fedlm_here("release", *words)
    return result.returncode, result.stdout + result.stderr


def statement_in(out):
    """Read the statement of a release, which fits its schema and follows from its plan."""
    record = read_statement(out / "statement.json")
    assert check_statement(record).findings == ()
    return record


@pytest.mark.long
def test_model_settings_and_statement_are_published(runs, fedlm_here, tmp_path, small_store):
    status, said = release(fedlm_here, runs / "second", "--out", tmp_path / "out")
    assert status == 0, said
    assert "tokenizer: not published: nothing is promised of it" in said
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"model.npz", "settings.json", "statement.json", "statement.html"}
    summary = json.loads((runs / "second" / "summary.json").read_text())
    record = statement_in(tmp_path / "out")
    assert record["private"]
    assert record["privacy_guarantee"] == summary["privacy_guarantee"]
    assert record["guarantee_of_this_run_alone"]["epsilon"] < record["privacy_guarantee"]["epsilon"]
    assert record["ancestry"][0]["folder"] == "run 1 of its history"
    assert not record["vocabulary"]["covered"]
    model = create_model(MODEL, TokenStore.open(small_store).vocabulary_size)
    params = load_published(tmp_path / "out", jax.eval_shape(model.init, jax.random.key(0)))
    assert parameters_digest(params) == summary["parameters_sha256"] == record["parameters_sha256"]
    page = (tmp_path / "out" / PAGE_FILE).read_text()
    for words in (
        f"epsilon = {rounded_up(summary['privacy_guarantee']['epsilon'])}",
        "zero-out",
        "NOT COVERED",
        "composed with",
    ):
        assert words in page
    assert "NOT PRIVATE" not in page
    # What was counted or measured stays where it was, and so do the names of folders.
    everything = b"".join(path.read_bytes() for path in (tmp_path / "out").glob("*.[jh]*"))
    # A fingerprint of text tells whoever knows all the others' what one client's is.
    contents = (runs / "private" / "privacy" / "ledger.jsonl").read_text() + json.dumps(summary["ancestry"])
    fingerprints = set(re.findall("[0-9a-f]{64}", contents))
    assert summary["ancestry"][0]["training_data_sha256"] in fingerprints
    for secret in (str(runs), str(small_store), *fingerprints):
        assert secret.encode() not in everything
    for name in ("test_loss", "bytes_up", "clients_dropped", "train_loss", "training_seconds", "machine"):
        assert name in summary or name == "train_loss"
        assert f'"{name}"'.encode() not in everything
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def test_how_long_a_training_before_went_on_is_not_published(runs, fedlm_here, tmp_path):
    shutil.copytree(runs / "second", tmp_path / "run")
    path = tmp_path / "run" / "privacy" / "ledger.jsonl"
    before = PrivacyLedger(path)
    (phase,) = recorded_ancestry(before.about)
    stopped = phase._replace(plan=phase.plan | {"rounds": 9}, steps=3, generations=[[0, 3]])
    path.unlink()
    ledger = PrivacyLedger(path)
    ledger.begin(before.plan, before.delta, before.commitments[0], before.about | {"ancestry": as_records([stopped])})
    ledger.intend(before.releases[-1])
    status, said = release(fedlm_here, tmp_path / "run", "--out", tmp_path / "out")
    assert status == 0, said
    record = statement_in(tmp_path / "out")
    assert (record["ancestry"][0]["steps"], record["ancestry"][0]["generations"]) == (9, [[0, 9]])
    assert record["privacy_guarantee"]["epsilon"] == pytest.approx(gaussian_epsilon(4.0, math.sqrt(10), 1e-5))
    assert "composed with 9 releases" in record["privacy"]


def test_a_vocabulary_that_is_private_for_each_client_is_withheld_where_units_hold_text_of_several(
    runs, fedlm_here, tmp_path
):
    origin = origin_of_import(plan_vocabulary(1.0, 1e-6, 100)).as_json()
    shutil.copytree(runs / "second", tmp_path / "run")
    path = tmp_path / "run" / "privacy" / "ledger.jsonl"
    before = PrivacyLedger(path)
    for number, (unit, published) in enumerate([("example: one packed sequence of 8 tokens", False), (None, True)]):
        path.unlink()
        ledger = PrivacyLedger(path)
        plan = dataclasses.replace(before.plan, unit=unit or before.plan.unit)
        about = before.about | {"ancestry": [], "vocabulary_origin": origin}
        ledger.begin(plan, before.delta, before.commitments[0], about)
        ledger.intend(before.releases[-1])
        out = tmp_path / f"out{number}"
        status, said = release(fedlm_here, tmp_path / "run", "--out", out)
        assert status == 0, said
        record = statement_in(out)
        assert record["vocabulary"]["covered"] == (out / "tokenizer.json").exists() == published
        assert ("VOCABULARY NOT COVERED" in record["privacy"]) == (not published)


def test_a_run_that_is_not_private_says_so_in_the_biggest_letters(runs, fedlm_here, tmp_path):
    status, said = release(fedlm_here, runs / "public", "--out", tmp_path / "out", "--uncovered-tokenizer")
    assert status == 0, said
    assert "NOT PRIVATE" in said
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert '<p class="huge">NOT PRIVATE</p>' in (tmp_path / "out" / PAGE_FILE).read_text()
    record = statement_in(tmp_path / "out")
    assert (record["private"], record["privacy_guarantee"]) == (False, None)
    assert "operator's word" in record["vocabulary"]["tokenizer"]


def test_what_was_not_released_is_not_published(runs, fedlm_here, tmp_path, small_store):
    mixed = tmp_path / "mixed"
    shutil.copytree(runs / "private", mixed)
    shutil.rmtree(mixed / "checkpoints")
    shutil.copytree(runs / "public" / "checkpoints" / "1", mixed / "checkpoints" / "1")
    for words, message in {
        (mixed,): "the ledger does not name the checkpoint",
        (small_store,): "not the folder of a run",
        (runs / "private", "--vocabulary", runs): "not the tokenizer of the run",
    }.items():
        status, said = release(fedlm_here, *words, "--out", tmp_path / "out")
        assert (status, message in said) == (2, True), said
        assert not (tmp_path / "out").exists()
    with pytest.raises(CheckpointError, match="the ledger does not name the checkpoint"):
        open_model(mixed)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert "is there already" in release(fedlm_here, runs / "private", "--out", tmp_path / "full")[1]
    np.savez(tmp_path / "full" / "model.npz", other=np.zeros(2))
    with pytest.raises(CheckpointError, match="another model"):
        load_published(tmp_path / "full", {"w": jax.ShapeDtypeStruct((2,), np.float32)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "mixed"]
