"""Logits of sequential recommenders against PyTorch's layers: a committed file, and live where these are installed."""

import json
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.simulation.peers.recommender_logits import (
    BLOCKS,
    HEADS,
    HIDDEN,
    INPUTS,
    ITEMS,
    LENGTH,
    MLP,
    RECURRENT_LAYERS,
    WIDTH,
    draw,
)
from fedlm.models.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.sasrec import SasRecConfig, sasrec

ROOT = Path(__file__).parents[2]
PEERS_PYTHON = ROOT / "benchmarks" / "simulation" / "peers" / ".venv" / "bin" / "python"
GOLDEN = json.loads((Path(__file__).parent / "recommender_logits.json").read_text())
RECURRENT = RecurrentRecommenderConfig(vocabulary_size=ITEMS, layers=RECURRENT_LAYERS, embedding=WIDTH, hidden=HIDDEN)
MODELS = {
    "gru4rec": gru4rec("gru4rec", RECURRENT),
    "lstm4rec": lstm4rec("lstm4rec", RECURRENT),
    "sasrec": sasrec(
        "sasrec",
        SasRecConfig(vocabulary_size=ITEMS, layers=BLOCKS, heads=HEADS, embedding=WIDTH, mlp=MLP, max_length=LENGTH),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_in_float64_are_those_of_pytorch_to_the_last_digits(name):
    model = MODELS[name]
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: draw(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape), shapes
    )
    with jax.enable_x64(True):
        logits = jax.jit(model.apply)(params, INPUTS)
        np.testing.assert_allclose(logits, GOLDEN[name], rtol=0, atol=1e-11)


def test_the_committed_logits_are_what_pytorch_says_today(tmp_path):
    has_it = [PEERS_PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"]
    if not PEERS_PYTHON.exists() or subprocess.run(has_it).returncode:
        pytest.skip("PyTorch is not installed; run `make bench-peers`")
    out = tmp_path / "found.json"
    subprocess.run(
        [PEERS_PYTHON, "-m", "benchmarks.simulation.peers.recommender_logits", out], check=True, cwd=ROOT, timeout=300
    )
    found = json.loads(out.read_text())
    for name, logits in GOLDEN.items():
        np.testing.assert_allclose(found[name], logits, rtol=0, atol=1e-11)
