"""What a run writes down and states of its data's vocabulary."""

import dataclasses
import json
import re
import shutil

import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.origins.vocabulary_origin import UNKNOWN, VocabularyOrigin, origin_of_import
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from fedlm.fl_core.runs.statements.publishing import publish
from fedlm.fl_core.runs.statements.statement_check import check_statement
from fedlm.fl_core.runs.statements.statement_reading import read_statement
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.pretraining.preparing import prepare_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from tests.support.plain_runs import MODEL, PRIVATE

pytestmark = pytest.mark.usefixtures("plain_cohorts")
OF_NOISE = origin_of_import(plan_vocabulary(1.0, 1e-6, 100))


def store_of(small_store, folder, origin):
    """Copy a store, with another record of where its vocabulary comes from, or none."""
    store = folder / "store"
    shutil.copytree(small_store, store)
    document = json.loads((store / "store.json").read_text())
    document.pop("vocabulary_origin", None)
    document |= {"vocabulary_origin": origin.as_json()} if origin.recorded else {}
    (store / "store.json").write_text(json.dumps(document))
    return store


def settings_on(store, **changes):
    return compose(Experiment, data=store, **PRIVATE | changes)


@pytest.mark.parametrize(
    ("origin", "sampler"),
    [
        (OF_NOISE, "min_separation"),
        (VocabularyOrigin("training data"), "min_separation"),
        (VocabularyOrigin("training data"), "poisson"),
        (UNKNOWN, "min_separation"),
    ],
    ids=lambda one: getattr(one, "kind", one),
)
def test_ledger_summary_and_release_say_it(small_store, tmp_path, origin, sampler):
    store = store_of(small_store, tmp_path, origin)
    summary = run_experiment(settings_on(store, cohort_sampler=sampler), tmp_path / "run")
    ledger = PrivacyLedger(tmp_path / "run" / "privacy" / "ledger.jsonl")
    assert VocabularyOrigin.from_json(ledger.about["vocabulary_origin"]) == origin
    assert summary["vocabulary_origin"] == origin.as_json()
    assert origin.sentence() in summary["privacy"]
    alone = account(ledger.plan, 1e-5).epsilon
    assert (summary["privacy_guarantee"]["epsilon"] > alone) == (origin is OF_NOISE)
    # What the store says afterwards changes nothing of what was written down.
    (store / "store.json").write_text((store / "store.json").read_text().replace('"private"', '"public"'))
    assert state(ledger).counts.vocabulary == origin
    published = publish(tmp_path / "run", tmp_path / "out", lambda path: Tokenizer.load(path).fingerprint)
    assert ("tokenizer.json" in published.files) == origin.covered
    stated = read_statement(tmp_path / "out" / "statement.json")
    assert check_statement(stated).findings == ()
    assert stated["vocabulary"]["covered"] == origin.covered
    assert stated["privacy_guarantee"] == summary["privacy_guarantee"]
    page = (tmp_path / "out" / "statement.html").read_text()
    has_rho = origin is not OF_NOISE and sampler != "poisson"
    rho = "rho = 0" if has_rho else "not stated: rho does not express all .* sampling, .* vocabulary"
    assert re.search(f"<dt>zCDP</dt><dd>{rho}", page)
    assert "sampling amplifies" not in page, "a reason that is not this run's"


@pytest.mark.parametrize("kind", ["public", "private"])
def test_a_release_tells_nobodys_fingerprint_and_keeps_their_words(small_store, tmp_path, kind):
    """Of a vocabulary that is recorded to be made of the text of people whom the run counts."""
    made_of = TokenStore.open(small_store).training_data(check=False)
    origin = (
        VocabularyOrigin("public")
        if kind == "public"
        else dataclasses.replace(OF_NOISE, of_another=True, of_users=True)
    )
    store = store_of(small_store, tmp_path, dataclasses.replace(origin, text=made_of))
    summary = run_experiment(settings_on(store), tmp_path / "run")
    assert ("VOCABULARY NOT COVERED" in summary["privacy"]) == (kind == "public")
    published = publish(tmp_path / "run", tmp_path / "out", lambda path: Tokenizer.load(path).fingerprint)
    assert ("tokenizer.json" in published.files) == (kind == "private")
    assert made_of in (tmp_path / "run" / "privacy" / "ledger.jsonl").read_text()
    for path in (tmp_path / "out").iterdir():
        assert made_of.encode() not in path.read_bytes(), path
    stated = read_statement(tmp_path / "out" / "statement.json")
    assert check_statement(stated).findings == ()
    assert stated["vocabulary"]["covered"] == stated["vocabulary_origin"]["covered"] == (kind == "private")


def test_a_run_does_not_go_on_with_the_vocabulary_of_another_import(small_store, tmp_path):
    """Whose words are equal, and whose noise was drawn apart."""
    settings = settings_on(store_of(small_store, tmp_path / "one", OF_NOISE))
    run_experiment(settings, tmp_path / "run")
    again = dataclasses.replace(OF_NOISE, release="another")
    on_the_other = settings_on(store_of(small_store, tmp_path / "other", again), rounds=2)
    with pytest.raises(CheckpointError, match="the vocabulary of another import"):
        run_experiment(on_the_other, tmp_path / "run")


def test_a_target_of_a_run_includes_its_vocabulary(small_store, tmp_path):
    store = store_of(small_store, tmp_path, OF_NOISE)
    summary = run_experiment(settings_on(store, noise_multiplier=None, target_epsilon=3.0), tmp_path / "run")
    assert 3.0 * (1 - 1e-2) < summary["privacy_guarantee"]["epsilon"] <= 3.0


def test_central_training_includes_it(small_store, tmp_path):
    noises = []
    for name, origin in (("private", OF_NOISE), ("plain", VocabularyOrigin("training data"))):
        store = store_of(small_store, tmp_path / name, origin)
        settings = {"model": MODEL, "data": store, "steps": 5, "batch_size": 4, "length": 8}
        settings |= {"unit": "user", "epsilon": 3.0, "delta": 1e-5}
        prepared = prepare_pretraining(compose(Pretraining, **settings))
        assert prepared.origins.vocabulary == origin
        noises.append(prepared.plan.noise_multiplier)
    assert noises[0] > noises[1]
