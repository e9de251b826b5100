"""Adapters as Hugging Face's PEFT has them, held to its names and logits."""

import json
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.simulation.peers.decoder_logits import INPUTS, draw
from benchmarks.simulation.peers.peft_logits import ADAPTED, ALPHA, RANK
from fedlm.fl_core.composed_settings import compose
from fedlm.models.base import given_frozen
from fedlm.models.families.published_decoder import published_decoder
from fedlm.models.hugging_face.gemma import config_from_hugging_face, names_in_hugging_face
from fedlm.models.hugging_face.named_states import from_state, to_state
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.evaluation.trained_models import open_model
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.weights.adapter_files import adapter_tensors
from fedlm.simulations.weights.exporting import export_model, read_run
from fedlm.simulations.weights.importing import import_model
from tests.simulations.weights.published_models import BERT, PEERS_PYTHON, publish, skip_without

GOLDEN = json.loads((Path(__file__).parents[2] / "models" / "lora_logits.json").read_text())["models"]
OURS = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "attention_output",
    "gate_proj": "mlp_gate",
    "up_proj": "mlp_input",
    "down_proj": "mlp_output",
}
_THEIRS = """
import json, sys
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
base, adapters, inputs, out = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
masked = json.load(open(base + "/config.json"))["model_type"] == "bert"
kind = AutoModelForMaskedLM if masked else AutoModelForCausalLM
model = kind.from_pretrained(base, attn_implementation="eager").float().eval()
model = PeftModel.from_pretrained(model, adapters).eval()
with torch.no_grad():
    logits = model(input_ids=torch.tensor(inputs)).logits.tolist()
json.dump({"logits": logits}, open(out, "w"))
"""


def drawn_adapters(adapters, names):
    """The same tree with the arrays that the names in PEFT's files stand for."""
    by_name = {name: draw(name, array.shape) for name, array in adapter_tensors(adapters, names).items()}
    leaves, structure = jax.tree_util.tree_flatten(adapters)
    # In the order of the leaves, which is that of the tensors.
    found = [value.T for value in by_name.values()]
    assert [one.shape for one in found] == [leaf.shape for leaf in leaves]
    return jax.tree_util.tree_unflatten(structure, found), by_name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != "gemma3")) for name in ADAPTED]
)
def test_logits_and_names_are_those_of_peft(name):
    golden = GOLDEN[name]
    config = config_from_hugging_face(golden["config"])
    base = published_decoder(name, config)
    names = names_in_hugging_face(config)
    shapes = jax.tree_util.tree_map(
        lambda leaf: np.zeros(leaf.shape, np.float32), jax.eval_shape(base.init, jax.random.key(0))
    )
    state = {key: draw(key, array.shape) for key, array in to_state(shapes, names).items()}
    params = from_state(state, names, "a Gemma")
    model = lora_model(base, LoraConfig(RANK, ALPHA, matrices=tuple(OURS[module] for module in ADAPTED[name])))
    adapters, tensors = drawn_adapters(jax.device_get(model.init(jax.random.key(0))), names)
    assert {key: list(array.shape) for key, array in tensors.items()} == golden["tensors"]
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(lambda frozen, adapters: given_frozen(model, frozen).apply(adapters, INPUTS))(params, adapters)
    np.testing.assert_allclose(logits, golden["logits"], rtol=2e-4, atol=2e-4)


def adapted_run(folder, config):
    """Fine-tune an imported model by adapters; returns the run, and the folder of the model that it begins with."""
    publish(folder / "published", config)
    model = import_model(folder / "published", folder / "imported").model
    text = ["the cat sat on a mat", "a mat sat on the cat"] if config["model_type"] == "bert" else ["abc def", "gh ab"]
    clients = [ClientText(f"client{index}", text * 3) for index in range(60)]
    vocabulary = folder / "imported" / "tokenizer.json"
    import_text("made up", InMemoryText(clients), folder / "data", ImportSettings(vocabulary=vocabulary), workers=1)
    settings = {"steps": 2, "batch_size": 4, "length": 6, "learning_rate": 0.1, "privacy": "none"}
    lora = {"init_from": folder / "imported", "lora_rank": 2, "lora_alpha": 5.0}
    run_pretraining(compose(Pretraining, model=model, data=folder / "data", **settings, **lora), folder / "run")
    return folder / "run"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gemma", "bert"])
def test_peft_reads_what_was_exported(tmp_path, kind):
    run = adapted_run(tmp_path, BERT if kind == "bert" else GOLDEN["released"]["config"] | {"vocab_size": 15})
    export_model(run, tmp_path / "peft", "peft")
    export_model(run, tmp_path / "merged", "huggingface")
    stored = read_run(run)
    assert stored.adapters is not None
    np.testing.assert_array_equal(
        stored.params["blocks"][0]["query"]["kernel"], open_model(run).params["blocks"][0]["query"]["kernel"]
    )
    skip_without("peft")
    inputs = json.dumps((INPUTS % 12 + 1).tolist())

    def logits(*words):
        out = tmp_path / "logits.json"
        subprocess.run([PEERS_PYTHON, "-c", *words, out], check=True, timeout=300)
        return np.array(json.loads(out.read_text())["logits"])

    without = _THEIRS.replace("model = PeftModel.from_pretrained(model, adapters).eval()\n", "")
    found = logits(_THEIRS, tmp_path / "published", tmp_path / "peft", inputs)
    merged = logits(without, tmp_path / "merged", tmp_path / "peft", inputs)
    before = logits(without, tmp_path / "published", tmp_path / "peft", inputs)
    np.testing.assert_allclose(found, merged, rtol=1e-4, atol=1e-4)
    assert np.max(np.abs(found - before)) > 0.01
