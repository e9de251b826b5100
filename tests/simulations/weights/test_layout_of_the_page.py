"""The page on models has what a model computes from its file, in NumPy; here these very lines compute it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from fedlm.models.hugging_face.named_states import to_state
from fedlm.models.registry import ModelEntry, find_entry
from fedlm.models.special_tokens import OWN
from fedlm.simulations.weights.layouts import own_config, own_layout
from fedlm.simulations.weights.tensor_files import write_tensors
from tests.models.lines_of_the_page import lines_of_the_page
from tests.models.small_models import perturbed

TOKENS = np.array([1, 4, 9, 5, 5, 12, 3, 7])
LAYER_NORMS, RMS_NORM = "cifg_tiny+recurrence=layer_norm", "transformer_tiny+final_norm=rms_norm"
QUICK = (LAYER_NORMS, RMS_NORM, "si_cifg_tiny", "si_transformer_tiny")
NAMES = (
    "cifg_tiny",
    "cifg_tiny+tied=false",
    "cifg_tiny+output_norm=rms_norm",
    "cifg_tiny+output_norm=unit_rms",
    "si_cifg_tiny+output_norm=none",
    "transformer_tiny",
    "sasrec_tiny",
    "sasrec+tied=false",
    "gru4rec_tiny",
    "gru4rec+tied=false",
    "lstm4rec_tiny",
)


def functions_of(name):
    """The page's, changed to what it does not write out: two settings, and norms within a CIFG."""
    functions = lines_of_the_page()
    dense, norm, sigmoid = (functions[one] for one in ("dense", "layer_norm", "sigmoid"))

    def final_rms_norm(t, name, x):
        if name != "final_norm":
            return norm(t, name, x)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True)) * (1 + t[f"{name}.scale"])

    def layer_norm_cifg(t, tokens, sizes):
        h, c, found = np.zeros(sizes["embedding"]), np.zeros(sizes["hidden"]), []
        norms = {f"gates.{part}": t[f"recurrent.gate_norm.{part}"].reshape(3, -1) for part in ("scale", "shift")}
        for x in functions["inputs"](t, tokens):
            z = dense(t, "recurrent.input", x) + dense(t, "recurrent.recurrent", h)
            i, g, o = norm(norms, "gates", z.reshape(3, -1))
            c = (1 - sigmoid(i)) * c + sigmoid(i) * np.tanh(g)
            h = dense(t, "recurrent.projection", sigmoid(o) * np.tanh(norm(t, "recurrent.cell_norm", c)))
            found.append(h)
        return functions["scores"](t, np.array(found))

    changes = {LAYER_NORMS: {"cifg": layer_norm_cifg}, RMS_NORM: {"layer_norm": final_rms_norm}}
    functions |= changes.get(name, {})
    return functions


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in NAMES)])
def test_the_lines_of_the_page_give_the_logits_of_the_model_from_its_file(name, tmp_path):
    build, config = find_entry(name)
    sizes = {"layers": 2} if hasattr(config, "layers") else {}
    sizes |= {"unroll": 3} if name == "cifg_tiny+tied=false" else {}
    config = dataclasses.replace(config, vocabulary_size=17, **sizes)
    entry, model = ModelEntry(build, config), build(name, config)
    params = perturbed(model.init(jax.random.key(0)))
    layout = own_layout(entry)
    write_tensors(tmp_path, to_state(params, layout.names, layout.own))
    (tmp_path / "config.json").write_text(json.dumps(own_config(entry, OWN)))

    read = json.loads((tmp_path / "config.json").read_text())["model"]
    tensors = {key: value.astype(np.float64) for key, value in load_file(tmp_path / "model.safetensors").items()}
    if read["config"].get("output_norm") == "unit_rms":
        tensors["output_norm.scale"] = 0.0
    logits = functions_of(name)[read["architecture"]](tensors, TOKENS, read["config"])
    with jax.enable_x64(True):
        expected = jax.jit(model.apply)(jax.tree_util.tree_map(np.float64, params), TOKENS[None])[0]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-9)
    assert np.std(logits) > 0.1
