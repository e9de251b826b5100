"""Private runs of models with re-attention: their constants, and what is said of these."""

import json
import shutil

import numpy as np
import pytest

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.promise.counts.relevance_spending import plan_relevance
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state_plan
from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
from fedlm.fl_core.runs.capabilities.reattention import ERRORS_FACT, ERRORS_FILE, read_errors
from fedlm.fl_core.runs.statements.publishing import publish
from fedlm.fl_core.runs.statements.statement_check import check_statement
from fedlm.fl_core.runs.statements.statement_reading import read_statement
from fedlm.models.families.reattention import ReattentionConfig, reattention_transformer
from fedlm.models.registry import ModelEntry, create_model, refuse_run_constants
from fedlm.simulations.data.relevance import count_relevance
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from fedlm.simulations.experiments.own_parts import OwnParts
from fedlm.simulations.experiments.preparation import prepare
from fedlm.simulations.pretraining.preparing import prepare_pretraining
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.weights.exporting import export_model
from tests.models.small_models import random_batch
from tests.simulations.pretraining.small_runs import SETTINGS, described
from tests.simulations.pretraining.small_stores import write_store
from tests.support.plain_runs import PRIVATE

LENGTH = 6
DELTA = 1e-5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    sizes = {"layers": 1, "heads": 1, "embedding": 8, "mlp": 12, "most_correction": 16.0}
    return described(tmp_path_factory.mktemp("model"), "reattention_transformer", **sizes)


@pytest.fixture(scope="module")
def files(small_store, tmp_path_factory):
    """A file of relevances of each kind, counted by example, and a public one by client."""
    folder = tmp_path_factory.mktemp("relevance")
    store = TokenStore.open(small_store)
    kinds = {"public": {"public": True}, "training": {}, "private": {"private": plan_relevance(1.0, 1e-6, 20)}}
    for name, options in kinds.items():
        # Public ones are as of other text: no run makes a promise of the people that they were counted in.
        elsewhere = {"training_data": None} if name == "public" else {}
        for unit, packing, file in (("example", "none", name), ("client", "none", f"{name}-client")):
            count_relevance(store, unit, LENGTH, packing, **options)._replace(**elsewhere).write(folder / file)
    return folder


@pytest.fixture(scope="module")
def settings_of(small_store, tiny):
    fixed = {"model": tiny, "data": small_store, "steps": 1, "checkpoint_every": 1, "packing": "none"}
    noise = {"privacy": "dpsgd", "noise_multiplier": 1.2, "delta": DELTA}
    return lambda **changes: compose(Pretraining, **SETTINGS | fixed | noise | changes)


@pytest.fixture(scope="module")
def train(settings_of):
    return lambda out, **changes: run_pretraining(settings_of(**changes), out)


@pytest.fixture(scope="module")
def trained(train, files, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    return train(out, relevance=files / "private"), out


@pytest.mark.long
def test_the_constants_follow_from_the_plan_and_are_published_with_the_model(trained, files, settings_of, tmp_path):
    summary, out = trained
    errors = read_errors(out)
    relevance = json.loads((files / "private").read_text())["relevance"]
    assert errors.noise_batch_ratio == 1.2 / 6 == summary["noise_batch_ratio"]
    assert errors.relevance == tuple(relevance)
    assert summary["parameter_errors"]["sha256"] == errors.fingerprint()
    assert PrivacyLedger(out / "privacy" / "ledger.jsonl").about[ERRORS_FACT] == errors.fingerprint()
    published = tmp_path / "published"
    assert ERRORS_FILE in publish(out, published, lambda path: Tokenizer.load(path).fingerprint).files
    assert read_errors(published) == errors
    record = read_statement(published / "statement.json")
    assert record["relevance_origin"]["kind"] == "private"
    assert check_statement(record).findings == ()
    # A control permutes them.
    permuted = prepare_pretraining(settings_of(relevance=files / "private", permute_relevance=True))
    assert constants_of(permuted).relevance != errors.relevance
    assert sorted(constants_of(permuted).relevance) == sorted(relevance)


@pytest.mark.long
def test_the_statement_says_where_they_come_from(trained, train, files, tmp_path):
    summary, _ = trained
    assert "the relevances of tokens are covered" in summary["privacy"]
    assert summary["relevance_origin"]["guarantee"]["epsilon"] == 1.0
    public = train(tmp_path / "public", relevance=files / "public")
    assert "the relevances of tokens are public" in public["privacy"]
    assert public["privacy_guarantee"]["epsilon"] < summary["privacy_guarantee"]["epsilon"]
    counted = train(tmp_path / "counted", relevance=files / "training")
    assert counted["privacy"].startswith("NOT PRIVATE")
    assert counted["privacy_guarantee"] is None
    plain = train(tmp_path / "plain", privacy="none", noise_multiplier=None, delta=None)
    assert "parameter_errors" not in plain
    assert not (tmp_path / "plain" / ERRORS_FILE).exists()


def constants_of(prepared):
    return prepared.capabilities.constants()["parameter_errors"]


@pytest.mark.long
def test_a_target_includes_what_a_private_count_spent(settings_of, files):
    target = {"noise_multiplier": None, "epsilon": 4.0}
    private, public = (
        prepare_pretraining(settings_of(relevance=files / kind, **target)) for kind in ("private", "public")
    )
    assert private.plan.noise_multiplier > public.plan.noise_multiplier
    assert constants_of(private).noise_batch_ratio == private.plan.noise_multiplier / 6
    about = {"relevance_origin": private.origins.relevance.as_json(), "vocabulary_origin": {"kind": "public"}}
    assert 3.99 < state_plan(private.plan, DELTA, about).total.epsilon <= 4.0


@pytest.mark.long
def test_what_is_opened_is_the_model_that_was_trained(trained, tiny, small_store):
    _, out = trained
    opened = open_model(out)
    tokens = random_batch().tokens[:, :-1]
    logits = opened.model.apply(opened.params, tokens)
    errors = read_errors(out)
    np.testing.assert_array_equal(logits, create_model(tiny, 120, None, errors).apply(opened.params, tokens))
    plain = create_model(tiny, 120).apply(opened.params, tokens)
    assert np.abs(np.asarray(logits) - plain).max() > 1e-4


@pytest.mark.long
def test_a_run_goes_on_with_its_own_constants_alone(train, files, tmp_path):
    out = tmp_path / "run"
    before = train(out, relevance=files / "private")
    (out / "summary.json").unlink()
    (out / ERRORS_FILE).unlink()
    # The file may lie elsewhere, and what its numbers spent is by the ledger, whatever it says of that later.
    record = json.loads((files / "private").read_text())
    (tmp_path / "moved").write_text(
        json.dumps(record | {"relevance_origin": {"kind": "public"}, "training_data_sha256": None})
    )
    assert train(out, relevance=tmp_path / "moved")["privacy"] == before["privacy"]
    assert read_errors(out).relevance == tuple(record["relevance"])
    (out / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="relevance of tokens, that attention is corrected by"):
        train(out, relevance=files / "public")
    with pytest.raises(CheckpointError, match="permute_relevance was False"):
        train(out, relevance=files / "private", permute_relevance=True)


def test_constants_that_were_changed_are_refused(trained, tmp_path):
    copy = shutil.copytree(trained[1], tmp_path / "copy")
    record = json.loads((copy / ERRORS_FILE).read_text())
    record["relevance"][5] *= 0.5
    (copy / ERRORS_FILE).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="not the constants that the run was trained with"):
        open_model(copy)
    (copy / ERRORS_FILE).unlink()
    with pytest.raises(CheckpointError, match="put the file of the run back"):
        open_model(copy)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, "give relevance, a file that `fedlm data relevance"),
        ({"relevance": "public-client"}, "was counted by client"),
        ({"relevance": "public", "length": 7}, "count with `fedlm data relevance --unit example --length 7"),
        ({"relevance": "public", "packing": "packed"}, "--packing packed"),
        ({"relevance": "public", "unit": "user"}, "this run clips by client"),
        ({"relevance": "public", "model": "transformer_tiny"}, "has no re-attention"),
        ({"relevance": "public", "privacy": "none", "noise_multiplier": None, "delta": None}, "nothing to correct"),
        ({"permute_relevance": True}, "does nothing without relevance"),
    ],
)
def test_what_does_not_fit_is_refused(train, files, tmp_path, changes, found):
    changes = {name: files / value if name == "relevance" else value for name, value in changes.items()}
    with pytest.raises(ConfigurationError, match=found):
        train(tmp_path / "run", **changes)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_where_nothing_gives_the_constants_the_models_are_refused(trained, settings_of, files, simulation, tmp_path):
    for name in ("transformer_tiny+reattention", "dpformer_tiny"):
        with pytest.raises(ConfigurationError, match="take the model without re-attention"):
            refuse_run_constants(name)
    refuse_run_constants("transformer_tiny")
    with pytest.raises(ConfigurationError, match="no other program's form has a place"):
        export_model(trained[1], tmp_path / "exported", "safetensors")
    adapters = settings_of(relevance=files / "private", init_from=trained[1], lora_rank=2)
    with pytest.raises(ConfigurationError, match="models that are trained whole"):
        prepare_pretraining(adapters)
    entry = ModelEntry(reattention_transformer, ReattentionConfig(layers=1, heads=2, embedding=8, mlp=12))
    with pytest.raises(ConfigurationError, match="give the model by its name"):
        prepare(compose(Experiment, **simulation), [OwnParts(model=entry)])


def test_counts_of_other_data_or_of_the_people_of_a_promise_as_public_are_refused(train, files, small_store, tmp_path):
    other = write_store(tmp_path / "other", [[[5, 6, 7]] * 4] * 8)
    with pytest.raises(ConfigurationError, match="another vocabulary"):
        train(tmp_path / "run", data=other.path, relevance=files / "public")
    record = json.loads((files / "private").read_text())
    (tmp_path / "file").write_text(json.dumps(record | {"training_data_sha256": "other"}))
    with pytest.raises(ConfigurationError, match="in another data set"):
        train(tmp_path / "run", relevance=tmp_path / "file")
    count_relevance(TokenStore.open(small_store), "example", LENGTH, "packed", public=True).write(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="was counted in the text of"):
        train(tmp_path / "run", relevance=tmp_path / "file")


def test_data_with_a_budget_are_not_counted(train, files, small_store, tmp_path):
    copy = shutil.copytree(small_store, tmp_path / "store")
    DataBudget.set(copy, 5.0, 1e-5)
    store = TokenStore.open(copy)
    for options in ({}, {"private": plan_relevance(1.0, 1e-6, 20)}):
        with pytest.raises(ConfigurationError, match="privacy budget"):
            count_relevance(store, "example", LENGTH, "packed", **options)
    for kind in ("private", "training"):
        with pytest.raises(ConfigurationError, match="knows nothing of that"):
            train(tmp_path / "run", data=copy, relevance=files / kind)


@pytest.fixture(scope="module")
def simulation(small_store, tiny, files):
    settings = PRIVATE | {"model": tiny, "data": small_store, "length": LENGTH, "noise_multiplier": 1.5, "delta": DELTA}
    settings |= {"client_max_batches": 1, "min_separation": 3, "max_participations": 2, "lanes_per_device": 1}
    return settings | {"relevance": files / "private-client"}


@pytest.mark.long
def test_federated_rounds(simulation, files, tmp_path):
    out = tmp_path / "run"
    summary = run_experiment(compose(Experiment, **simulation), out)
    assert read_errors(out).noise_batch_ratio == 1.5 / 6
    assert "the relevances of tokens are covered" in summary["privacy"]
    assert summary["parameter_errors"]["sha256"] == read_errors(out).fingerprint()
    assert open_model(out).model.name == simulation["model"]
    (out / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="relevance of tokens, that attention is corrected by"):
        run_experiment(compose(Experiment, **simulation | {"relevance": files / "public-client"}), out)


@pytest.mark.long
def test_a_comparison_gives_relevances_to_those_that_need_them(simulation, tiny):
    settings = {name: value for name, value in simulation.items() if name not in ("model", "noise_multiplier")}
    models = (tiny, "transformer_tiny")
    compared = compose(Comparison, **settings, models=models, epsilons=(8.0, float("inf")), seeds=(0,))
    for one in compared.experiments():
        assert (one.reattention.relevance is not None) == (one.model == tiny and one.privacy.is_private)
    assert len(compared.experiments()) == 4
