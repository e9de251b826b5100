"""The page on models has what a model computes from its file, in NumPy; here these very lines compute it."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from fedlm.models.hugging_face.named_states import to_state
from fedlm.models.registry import ModelEntry, find_entry
from fedlm.models.special_tokens import OWN
from fedlm.simulations.weights.layouts import own_config, own_layout
from fedlm.simulations.weights.tensor_files import write_tensors
from tests.models.small_models import perturbed

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
TOKENS = np.array([1, 4, 9, 5, 5, 12, 3, 7])
NAMES = (
    "cifg_tiny",
    "cifg_tiny+output_norm=rms_norm",
    "si_cifg_tiny",
    "si_cifg_tiny+output_norm=none",
    "transformer_tiny",
)
NAMES += (
    "si_transformer_tiny",
    "sasrec_tiny",
    "sasrec+tied=false",
    "gru4rec_tiny",
    "gru4rec+tied=false",
    "lstm4rec_tiny",
)


@pytest.fixture(scope="module")
def of_page():
    (code,) = re.findall(r"^```python layout\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    functions = {}
    exec(code, functions)
    return functions


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_lines_of_the_page_give_the_logits_of_the_model_from_its_file(name, of_page, tmp_path):
    build, config = find_entry(name)
    layers = {"layers": 2} if hasattr(config, "layers") else {}
    config = dataclasses.replace(config, vocabulary_size=17, **layers)
    entry, model = ModelEntry(build, config), build(name, config)
    params = perturbed(model.init(jax.random.key(0)))
    layout = own_layout(entry)
    write_tensors(tmp_path, to_state(params, layout.names, layout.own))
    (tmp_path / "config.json").write_text(json.dumps(own_config(entry, OWN)))

    read = json.loads((tmp_path / "config.json").read_text())["model"]
    tensors = {key: value.astype(np.float64) for key, value in load_file(tmp_path / "model.safetensors").items()}
    logits = of_page[read["architecture"]](tensors, TOKENS, read["config"])
    with jax.enable_x64(True):
        expected = jax.jit(model.apply)(jax.tree_util.tree_map(np.float64, params), TOKENS[None])[0]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-9)
    assert np.std(logits) > 0.1
