"""What runs of ours, trained or imported, become for others."""

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError, DataError, DiskError
from fedlm.fl_core.privacy.origins.ancestry import OF_A_PUBLISHER
from fedlm.fl_core.runs.capabilities.warm_start import read_parameters
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.fl_core.runs.recorded_runs import find_runs
from fedlm.models.registry import MODELS, create_model
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.generation.generating import GenerationSettings, Generator
from fedlm.simulations.generation.texts import prompt_tokens
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.weights.exporting import export_model, read_run
from fedlm.simulations.weights.importing import import_model
from fedlm.simulations.weights.layouts import read_layout
from fedlm.simulations.weights.tensor_files import open_tensors
from tests.simulations.weights.published_models import (
    BERT,
    END_IDS,
    GOLDEN,
    PEERS_PYTHON,
    built,
    import_published,
    publish,
    skip_without,
)

_THEIRS = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
folder, inputs, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
masked = json.load(open(folder + "/config.json"))["model_type"] == "bert"
kind = AutoModelForMaskedLM if masked else AutoModelForCausalLM
model, found = kind.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
model = model.float().eval()
with torch.no_grad():
    logits = model(input_ids=torch.tensor(inputs)).logits.tolist()
spelled = AutoTokenizer.from_pretrained(folder).convert_ids_to_tokens([0, 1, 2])
with open(out, "w") as file:
    json.dump({"logits": logits, "unexpected": list(found["unexpected_keys"]), "spelled": spelled}, file)
"""


def stored_run(folder, model, store):
    """A run of ours with one checkpoint, of freshly drawn parameters."""
    opened = TokenStore.open(store)
    params = create_model(model, opened.vocabulary_size).init(jax.random.key(0))
    settings = {"model": model, "data": str(store), "privacy": "none"}
    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(3, {"params": params}, {"pretraining": settings, "vocabulary": opened.fingerprint})
    return params


@pytest.mark.parametrize("model", ["cifg_tiny", "si_transformer_tiny"])
def test_models_of_ours_go_out_and_come_back(small_store, tmp_path, model):
    params = stored_run(tmp_path / "run", model, small_store)
    with pytest.raises(ConfigurationError, match="transformers has no model of this architecture"):
        export_model(tmp_path / "run", tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()
    assert export_model(tmp_path / "run", tmp_path / "out", "safetensors").dtypes == ("float32",)
    record = json.loads((tmp_path / "out" / "config.json").read_text())
    assert record["special_tokens"] == {"pad": 0, "bos": 1, "eos": 2, "oov": 3}
    found = import_model(tmp_path / "out", tmp_path / "again")
    stored = read_run(tmp_path / "again")
    jax.tree_util.tree_map(np.testing.assert_array_equal, stored.params, params)
    assert Path(found.model) == tmp_path / "again" / "model.json"
    assert stored.entry.build is MODELS[model].build
    assert stored.entry.config == dataclasses.replace(MODELS[model].config, vocabulary_size=120)
    export_model(tmp_path / "run", tmp_path / "rounded", "safetensors", dtype="bfloat16")
    table = np.asarray(open_tensors(tmp_path / "rounded")["embedding.table"])
    assert table.dtype.name == "bfloat16"
    np.testing.assert_array_equal(table, np.asarray(params["embedding"]["table"]).astype(table.dtype))


def test_a_full_disk_is_one_line_and_leaves_nothing(small_store, tmp_path, largest_file):
    stored_run(tmp_path / "run", "cifg_tiny", small_store)
    with largest_file(50_000), pytest.raises(DiskError, match=r"model\.safetensors: cannot be written: .*Make room"):
        export_model(tmp_path / "run", tmp_path / "out" / "model", "safetensors")
    assert not list((tmp_path / "out").iterdir())


def test_a_type_that_cannot_hold_the_numbers_is_refused(tmp_path):
    import_published(tmp_path, GOLDEN["gemma2"]["config"], changes={("model.norm.weight", 3): 1e5})
    with pytest.raises(ConfigurationError, match=r"in which 1 numbers of the tensor model\.norm\.weight would be"):
        export_model(tmp_path / "run", tmp_path / "out", "huggingface", dtype="float16")
    assert not (tmp_path / "out").exists()
    assert export_model(tmp_path / "run", tmp_path / "out", "huggingface", dtype="bfloat16").files


def test_a_tokenizer_that_is_gone_is_asked_for(small_store, tmp_path):
    shutil.copytree(small_store, tmp_path / "store")
    stored_run(tmp_path / "run", "cifg_tiny", tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(ConfigurationError, match=r"its tokenizer is not at .*; give vocabulary"):
        export_model(tmp_path / "run", tmp_path / "out", "safetensors")
    assert export_model(tmp_path / "run", tmp_path / "out", "safetensors", vocabulary=small_store).files


def test_what_a_publisher_claims_goes_with_the_weights(tmp_path, fedlm_here):
    publish(tmp_path / "published", GOLDEN["released"]["config"])
    words = ["--publisher-epsilon=2", "--publisher-delta=1.1e-10", "--publisher-unit=sequence of 1,024 tokens"]
    missing = fedlm_here("model", "import", str(tmp_path / "published"), f"--out={tmp_path / 'run'}", *words)
    assert missing.returncode == 2
    assert "the publisher's claim has no --publisher-source" in missing.stderr
    assert not (tmp_path / "run").exists()
    words += ["--publisher-source=arXiv:2510.15001"]
    done = fedlm_here("model", "import", str(tmp_path / "published"), f"--out={tmp_path / 'run'}", *words)
    assert 'claimed by the publisher: epsilon 2.0 at delta 1.1e-10 for each "sequence of 1,024 tokens"' in done.stdout
    stored = read_run(tmp_path / "run")
    assert stored.privacy == "NOT PRIVATE"
    claim = {"epsilon": 2.0, "delta": 1.1e-10, "unit": "sequence of 1,024 tokens", "source": "arXiv:2510.15001"}
    named = (stored.tokenizer.fingerprint, str(tmp_path / "run" / "model.json"))
    for said in ("same", "public", "disjoint"):
        (phase,) = read_parameters(tmp_path / "run", *named, initial_data=said, training_data="some data").ancestry
        assert (phase.command, phase.people, phase.not_private) == ("model import", said, OF_A_PUBLISHER)
        assert (phase.steps, phase.training_data_sha256, phase.claim) == (0, None, claim)


@pytest.mark.long
@pytest.mark.parametrize("name", [*GOLDEN, "bert"])
def test_transformers_loads_what_is_exported(tmp_path, name):
    skip_without("transformers")
    published = tmp_path / "published"
    config = BERT if name == "bert" else GOLDEN[name]["config"]
    import_published(tmp_path, config | (END_IDS if name in ("gpt2", "qwen2", "qwen3") else {}))
    export_model(tmp_path / "run", tmp_path / "out", "huggingface")
    inputs = np.array([[1, 5, 6, 7], [1, 8, 4, 2]]) % (12 if name == "bert" else 19)
    words = [tmp_path / "out", json.dumps(inputs.tolist()), tmp_path / "found.json"]
    subprocess.run([PEERS_PYTHON, "-c", _THEIRS, *words], check=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    assert not found["unexpected"]
    theirs = tokenizers.Tokenizer.from_file(str(published / "tokenizer.json"))
    assert found["spelled"] == [theirs.id_to_token(id_) for id_ in range(3)]
    stored = read_run(tmp_path / "run")
    layout = read_layout(published)
    ours = layout.adopt(tmp_path / "out" / "tokenizer.json").rows_of_theirs()
    ours = np.arange(layout.rows) if ours is None else ours
    logits = np.asarray(jax.jit(built(stored).apply)(stored.params, jnp.asarray(ours[inputs])))[..., ours]
    np.testing.assert_allclose(found["logits"], logits, rtol=1e-4, atol=1e-4)


def test_a_named_model_of_the_same_sizes_takes_the_parameters(tmp_path):
    import_published(tmp_path, GOLDEN["released"]["config"])
    stored = read_run(tmp_path / "run")
    entry = stored.entry._replace(config=dataclasses.replace(stored.entry.config, vocabulary_size=77))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "as_released", entry._replace(config=dataclasses.replace(entry.config)))
        read_parameters(tmp_path / "run", stored.tokenizer.fingerprint, "as_released")


def imported_with_data(folder):
    """A tiny Gemma as a run, and a data set with its tokenizer."""
    import_published(folder, GOLDEN["gemma3"]["config"])
    clients = [ClientText(f"user{number}", ["abc def", "cab hij"]) for number in range(30)]
    vocabulary = folder / "run" / "tokenizer.json"
    import_text("made up", InMemoryText(clients), folder / "store", ImportSettings(vocabulary=vocabulary), workers=1)
    return folder / "run", folder / "store"


def test_imported_weights_give_text_without_data(tmp_path):
    import_published(tmp_path, GOLDEN["gemma2"]["config"])
    trained = open_model(tmp_path / "run")
    prompts = prompt_tokens(trained.tokenizer, ["a b"])
    [completion] = Generator(trained.model, trained.params).generate(prompts, GenerationSettings(max_tokens=3))
    assert trained.tokenizer.decode([*prompts[0], *completion.tokens]).startswith("a b")
    with pytest.raises(ConfigurationError, match="was imported, and has no data of its own; give data, "):
        trained.split("train")


@pytest.mark.long
def test_an_imported_model_is_evaluated_on_data_of_its_tokenizer(small_store, tmp_path):
    run, store = imported_with_data(tmp_path)
    with pytest.raises(DataError, match=f"another vocabulary .*--vocabulary {run}/tokenizer.json"):
        open_model(run, small_store)
    moved = run.rename(tmp_path / "moved")
    trained = open_model(moved, store)
    (first, *_) = trained.split("train").sequences(0)
    assert (first[0], first[np.flatnonzero(first)[-1]]) == (2, 1)
    assert trained.model.special_tokens.eos == 1
    (listed,) = find_runs(moved)
    assert (listed.kind, listed.state, listed.privacy) == ("import", "finished", "NOT PRIVATE")


@pytest.mark.long
def test_fine_tuning_states_an_epsilon_for_its_own_text_alone(tmp_path):
    run, store = imported_with_data(tmp_path)
    settings = {"data": store, "steps": 1, "batch_size": 4, "length": 8, "epsilon": 8.0, "init_from": run}
    for said in ("same", "public"):
        training = compose(Pretraining, model=str(run / "model.json"), initial_data=said, **settings)
        summary = run_pretraining(training, tmp_path / said)
        assert ("epsilon" in summary["privacy"]) == (said == "public")
        assert "`fedlm model import`" in summary["privacy"]
    assert "assumed: the first parameters were made from public data" in summary["privacy"]
    written = export_model(tmp_path / "public", tmp_path / "out", "huggingface")
    assert written.dtypes == ("float32",)
    theirs, ours = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("published", "out"))
    assert ours == theirs
