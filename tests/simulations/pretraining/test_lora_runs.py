"""Runs that train adapters of an earlier run's model."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.runs.capabilities.frozen_parameters import read_frozen
from fedlm.fl_core.runs.capabilities.warm_start import read_parameters
from fedlm.fl_core.runs.files.checkpoints import Checkpoints, parameters_digest
from fedlm.models.base import parameter_count
from fedlm.models.layers.lora import LORA_A, LORA_B, lora_model
from fedlm.models.registry import create_model
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.pretraining.run import Observer
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.weights.exporting import export_model, read_run
from tests.simulations.pretraining import small_runs
from tests.simulations.pretraining.small_runs import PRIVATE, Interrupt, described

leaves = jax.tree_util.tree_leaves
LORA = {"lora_rank": 2, "lora_alpha": 6.0, "lora_dropout": 0.25, "lora_matrices": ("query", "mlp_output")}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return described(tmp_path_factory.mktemp("model"), "transformer", layers=1, heads=1, embedding=8, mlp=12)


@pytest.fixture(scope="module")
def train(small_store, tiny):
    return functools.partial(small_runs.train, data=small_store, model=tiny)


@pytest.fixture(scope="module")
def base(train, tmp_path_factory):
    out = tmp_path_factory.mktemp("base")
    train(out, steps=2)
    return out


@pytest.fixture(scope="module")
def adapted(train, base, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapted")
    return train(out, init_from=base, **PRIVATE, **LORA), out


@pytest.fixture
def changed(adapted, tmp_path):
    """A copy to do damage to."""
    return shutil.copytree(adapted[1], tmp_path / "changed")


def stored(run):
    with Checkpoints(run / "checkpoints") as checkpoints:
        return checkpoints.restore_arrays(checkpoints.latest_round())


@pytest.mark.long
def test_adapters_alone_are_trained_and_stored(adapted, base, tiny):
    summary, out = adapted
    whole = create_model(tiny, 120)
    config = compose(Pretraining, model="x", data=out, steps=1, batch_size=1, privacy="none", init_from=base, **LORA)
    trained = parameter_count(lora_model(whole, config.lora_config()))
    # A block with a query of 8 by 8 and an output of 12 by 8.
    assert trained == 2 * (16 + 20)
    assert (summary["parameters"], summary["trained_parameters"]) == (parameter_count(whole), trained)
    state = stored(out)
    assert sum(leaf.size for leaf in leaves(state["params"])) == trained
    # Two moments of Adam, and a few counters.
    assert 2 * trained <= sum(leaf.size for leaf in leaves(state["optimizer"])) < 2 * trained + 5
    assert summary["parameters_sha256"] == parameters_digest(state["params"])
    assert summary["privacy"].startswith("NOT PRIVATE")


def test_what_is_frozen_stays_as_it_was(adapted, base, tiny):
    _, out = adapted
    before = open_model(base).params
    after = open_model(out).params
    changed = {
        jax.tree_util.keystr(path)
        for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(before), leaves(after), strict=True)
        if not np.array_equal(one, other)
    }
    places = {f"['blocks'][0]['{name}']['kernel']" for name in ("query", "mlp_output")}
    assert changed == places
    adapters = stored(out)["params"]["blocks"][0]["query"]
    expected = before["blocks"][0]["query"]["kernel"] + 3.0 * adapters[LORA_A] @ adapters[LORA_B]
    np.testing.assert_allclose(after["blocks"][0]["query"]["kernel"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("private", [True, False])
def test_a_run_that_goes_on_comes_to_the_same_adapters(train, base, adapted, tmp_path, private):
    changes = LORA | {"init_from": base} | (PRIVATE if private else {})
    expected = adapted[0] if private else train(tmp_path / "whole", **changes)
    with pytest.raises(KeyboardInterrupt):
        # After the first checkpoint; a private run shows no row before.
        train(tmp_path / "run", Interrupt(1 if private else 2), **changes)
    # The run that it began with is not there any more.
    changes["init_from"] = tmp_path / "gone"
    assert train(tmp_path / "run", **changes)["parameters_sha256"] == expected["parameters_sha256"]


class InterruptBeforeACheckpoint(Observer):
    def stepped(self, done, steps, tokens_per_second):
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def gone_on(train, tmp_path_factory):
    """A run with an older checkpoint, too."""
    out = tmp_path_factory.mktemp("gone_on")
    train(out)
    return out


@pytest.mark.long
@pytest.mark.parametrize(("private", "saved"), [(True, True), (True, False), (False, False)])
def test_a_run_goes_on_though_what_it_began_with_has_gone_on(train, gone_on, tmp_path, private, saved):
    begun, run = shutil.copytree(gone_on, tmp_path / "begun"), tmp_path / "run"
    shutil.rmtree(begun / "checkpoints" / "4")
    older, newer = (parameters_digest(stored(folder)["params"]) for folder in (begun, gone_on))
    changes = LORA | {"init_from": begun} | (PRIVATE if private else {})
    with pytest.raises(KeyboardInterrupt):
        train(run, Interrupt(1) if saved else InterruptBeforeACheckpoint(), **changes)
    shutil.copytree(gone_on, begun, dirs_exist_ok=True)
    summary = train(run, **changes)
    # Without a checkpoint and a ledger nothing is known of it to anybody, and it begins again.
    expected = older if private else newer
    assert summary["initial_parameters"]["parameters_sha256"] == expected
    assert summary["ancestry"][0]["parameters_sha256"] == expected
    assert summary["ancestry"][0]["steps"] == (2 if private else 4)
    assert parameters_digest(read_frozen(run, expected)) == expected
    open_model(run)
    # It is over, and the same command says so.
    assert train(run, **changes)["parameters_sha256"] == summary["parameters_sha256"]
    if private:
        (run / "summary.json").unlink()
        with pytest.raises(CheckpointError, match="another set of first parameters"):
            train(run, **changes | {"init_from": gone_on})


def test_what_a_unit_is_and_how_much_noise_there_was_is_not_read_from_a_summary(train, base, adapted, changed):
    path = changed / "summary.json"
    edited = json.loads(path.read_text())
    edited["units"]["protects"], edited["noise_batch_ratio"] = "all that anybody wrote", 99.0
    path.write_text(json.dumps(edited))
    found = train(changed, init_from=base, **PRIVATE, **LORA)
    for name in ("units", "noise_batch_ratio"):
        assert found[name] == adapted[0][name]


def test_frozen_parameters_that_are_gone_or_others_are_refused(adapted, changed, base, small_store, tiny):
    fingerprint = TokenStore.open(small_store).fingerprint
    frozen = changed / "frozen" / "1"
    with Checkpoints(changed / "frozen") as checkpoints:
        params = checkpoints.restore_arrays(1)["params"]
    assert parameters_digest(params) == parameters_digest(stored(base)["params"])
    params["output_bias"][3] += 1
    shutil.rmtree(frozen)
    with Checkpoints(changed / "frozen") as checkpoints:
        checkpoints.save(1, {"params": params}, {})
    readers = (
        lambda: open_model(changed),
        lambda: read_run(changed),
        lambda: read_parameters(changed, fingerprint, tiny),
        lambda: read_frozen(changed, "0"),
    )
    for read in readers:
        with pytest.raises(CheckpointError, match="frozen: holds other parameters"):
            read()
    # Which of them are read, and which of those is the largest, is not always the same.
    for path in (frozen / "state").rglob("d/*"):
        path.write_bytes(path.read_bytes()[:-20])
    for read in readers:
        with pytest.raises(CheckpointError, match="adapters belong to are damaged; put the folder back"):
            read()
    shutil.rmtree(frozen)
    for read in readers:
        with pytest.raises(CheckpointError, match="frozen: the parameters that this run's adapters belong to are miss"):
            read()


@pytest.mark.long
def test_what_a_private_run_s_adapters_belong_to_is_what_its_ledger_says(train, changed, tmp_path, small_store, tiny):
    other = train(tmp_path / "other", steps=1, seed=1)
    shutil.rmtree(changed / "frozen")
    with Checkpoints(changed / "frozen") as checkpoints:
        checkpoints.save(1, {"params": stored(tmp_path / "other")["params"]}, {})
    for path in changed.glob("checkpoints/*/about/metadata"):
        about = json.loads(path.read_text()) | {"initial_parameters_sha256": other["parameters_sha256"]}
        path.write_text(json.dumps(about))
    fingerprint = TokenStore.open(small_store).fingerprint
    for read in (lambda: open_model(changed), lambda: read_parameters(changed, fingerprint, tiny)):
        with pytest.raises(CheckpointError, match="frozen: holds other parameters"):
            read()
    (changed / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="another set of first parameters"):
        train(changed, init_from=tmp_path / "other", **PRIVATE, **LORA)


@pytest.mark.long
def test_another_run_begins_with_the_merged_model(train, adapted, tmp_path, small_store, tiny):
    _, out = adapted
    found = read_parameters(out, TokenStore.open(small_store).fingerprint, tiny)
    whole = open_model(out).params
    assert found.sha256 == parameters_digest(whole)
    # What a ledger names is what was trained.
    assert found.ancestry[-1].parameters_sha256 == parameters_digest(stored(out)["params"])
    again = train(tmp_path / "again", init_from=out, lora_rank=1, steps=1)
    assert again["initial_parameters"]["parameters_sha256"] == found.sha256
    assert [phase["command"] for phase in again["ancestry"]] == ["pretrain", "pretrain"]


@pytest.mark.long
def test_a_private_run_states_what_its_frozen_parameters_have_spent(train, tmp_path):
    private = {"privacy": "dpsgd", "noise_multiplier": 2.0, "delta": 1e-4, "steps": 2}
    first = train(tmp_path / "first", **private)
    second = train(tmp_path / "second", init_from=tmp_path / "first", lora_rank=2, **private)
    alone, both = (one["privacy_guarantee"]["epsilon"] for one in (first, second))
    assert both > 1.1 * alone
    assert second["ancestry"][0]["parameters_sha256"] == first["parameters_sha256"]
    # Others get at no file that the run has written.
    written = [tmp_path / "second", *(tmp_path / "second" / "frozen").rglob("*")]
    assert len(written) > 1
    assert not any(path.stat().st_mode & 0o077 for path in written)


def test_exported_adapters_are_the_difference_to_the_merged_model(adapted, base, tmp_path):
    _, out = adapted
    for run, name in ((out, "merged"), (base, "base")):
        export_model(run, tmp_path / name, "safetensors")
    files = export_model(out, tmp_path / "peft", "peft").files
    assert files == ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 6.0, 0.25)
    tensors = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    merged, before = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "base"))
    assert config["target_modules"] == ["blocks.0.mlp_output", "blocks.0.query"]
    for module in config["target_modules"]:
        a, b = (tensors.pop(f"base_model.model.{module}.lora_{kind}.weight") for kind in "AB")
        kernel = before[f"{module}.kernel"] + 3.0 * (b @ a).T
        np.testing.assert_allclose(merged[f"{module}.kernel"], kernel, rtol=1e-5, atol=1e-6)
    assert not tensors
    with pytest.raises(ConfigurationError, match="has no adapters, for it trained the whole model"):
        export_model(base, tmp_path / "none", "peft")
    assert not (tmp_path / "none").exists()
