"""Logits and sizes of BERT against Hugging Face's BertForMaskedLM: a committed file, and live where it is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.simulation.peers import bert_logits
from benchmarks.simulation.peers.bert_logits import HEADS, INPUTS, LAYERS, POSITIONS, PUBLISHED, VOCABULARY, WIDTH, draw
from fedlm.models.base import parameter_count
from fedlm.models.families.bert import BertConfig, bert
from fedlm.models.hugging_face.bert import TIED, check_tied, names_in_hugging_face
from fedlm.models.hugging_face.named_states import from_state, to_state
from fedlm.models.registry import MODELS, create_model
from tests.models.peers import assert_said_today, committed

GOLDEN = committed("bert_logits.json")
CONFIG = BertConfig(
    vocabulary_size=VOCABULARY - 1, layers=LAYERS, heads=HEADS, embedding=WIDTH, mlp=4 * WIDTH, max_length=POSITIONS
)
MODEL = bert("small", CONFIG)
NAMES = names_in_hugging_face(LAYERS)


def read(state):
    return from_state(state, NAMES, "a BertForMaskedLM")


@pytest.fixture(scope="module")
def params():
    ours = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape), jax.eval_shape(MODEL.init, jax.random.key(0)))
    return read({name: draw(name, leaf.shape) for name, leaf in to_state(ours, NAMES).items()})


def test_logits_in_float64_are_those_of_hugging_face_to_the_last_digits(params):
    # What float32 would hide: the epsilon of layer norms, an approximation of the GELU.
    with jax.enable_x64(True):
        logits = jax.jit(MODEL.apply)(jax.tree_util.tree_map(np.float64, params), jnp.asarray(INPUTS))
        np.testing.assert_allclose(logits, GOLDEN["logits"], rtol=0, atol=1e-11)


def test_the_committed_logits_are_what_hugging_face_says_today(tmp_path):
    assert_said_today(bert_logits, "transformers", GOLDEN, tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_models_have_the_published_sizes_and_as_many_parameters_as_theirs(name):
    config, (layers, e) = MODELS[name].config, PUBLISHED[name]
    assert (config.layers, config.embedding, config.heads, config.mlp) == (layers, e, e // 64, 4 * e)
    assert parameter_count(create_model(name)) == GOLDEN["parameters"][name]


def test_a_state_that_lacks_a_parameter_or_is_not_tied_is_refused(params):
    state = to_state(params, NAMES)
    bias = "bert.encoder.layer.1.output.dense.bias"
    with pytest.raises(ValueError, match=f"has no {bias}"):
        read({name: value for name, value in state.items() if name != bias})
    decoder = "cls.predictions.decoder.weight"
    with pytest.raises(ValueError, match=f"{decoder} differs"):
        check_tied(state | {decoder: state[TIED[decoder]] + 1}, TIED)
