"""Logits of sequential recommenders against PyTorch's layers: a committed file, and live where these are installed."""

import jax
import numpy as np
import pytest

from benchmarks.simulation.peers import recommender_logits
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
from fedlm.models.families.recurrent_recommenders import RecurrentRecommenderConfig, gru4rec, lstm4rec
from fedlm.models.families.sasrec import SasRecConfig, sasrec
from tests.models.peers import assert_said_today, committed

GOLDEN = committed("recommender_logits.json")
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
    assert_said_today(recommender_logits, "torch", GOLDEN, tmp_path)
