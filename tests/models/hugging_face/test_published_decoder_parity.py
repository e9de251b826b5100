"""Logits of published decoders against Hugging Face's: a committed file, and live where it is installed."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.simulation.peers import decoder_logits
from benchmarks.simulation.peers.decoder_logits import INPUTS, MODELS, draw
from fedlm.models.errors import ConfigurationError
from fedlm.models.hugging_face import llama
from fedlm.models.hugging_face.gemma import config_from_hugging_face, config_to_hugging_face
from fedlm.models.hugging_face.named_states import StateError, check_shapes, from_state, to_state
from fedlm.models.registry import MODELS as OURS
from fedlm.simulations.weights.layouts import MODEL_TYPES, hugging_face_layout
from tests.models.peers import assert_said_today, committed

COMMITTED = committed("decoder_logits.json")
GOLDEN = COMMITTED["models"]

# config.json of Gemma 3's 1B as version 4 of transformers wrote it.
BEFORE_VERSION_5 = {
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}


ABSENT = object()
"""Nothing is taken from defaults where it is not there."""


def built(name):
    document = GOLDEN[name]["config"]
    family = MODEL_TYPES[document["model_type"]]
    layout = family.layout(family.read(document))
    zeros = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape), layout.like())
    packed = layout.pack(to_state(zeros, layout.names))
    return layout, {name: draw(name, array.shape) for name, array in packed.items()}


@pytest.mark.parametrize("name", MODELS)
def test_configurations_come_back_and_logits_are_those_of_hugging_face(name):
    layout, state = built(name)
    again, document = hugging_face_layout(layout.entry, layout.model.special_tokens)
    assert MODEL_TYPES[document["model_type"]].read(json.loads(json.dumps(document))) == layout.entry.config
    assert again.entry == layout.entry
    unpacked = layout.unpack(state)
    check_shapes(unpacked, layout.names, layout.like())
    params = from_state(unpacked, layout.names, layout.what)
    logits = jax.jit(layout.model.apply)(params, jnp.asarray(INPUTS))
    np.testing.assert_allclose(logits, GOLDEN[name]["logits"], rtol=1e-5, atol=5e-5)
    jax.tree_util.tree_map(np.testing.assert_array_equal, layout.pack(to_state(params, layout.names)), state)


def test_a_configuration_of_the_release_is_the_named_model():
    released = OURS["vaultgemma_1b"].config
    document = config_to_hugging_face(released) | {"sliding_window": 512}
    del document["rope_parameters"]
    assert config_from_hugging_face(document | {"rope_theta": 10000.0}) == released


def test_a_configuration_of_version_4_is_read():
    config = config_from_hugging_face(BEFORE_VERSION_5)
    assert (config.rope_base, config.window_rope_base) == (1e6, 1e4)
    assert config.windows[:7] == (512, 512, 512, 512, 512, 0, 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({missing: ABSENT}, f"has no {missing}")
            for missing in ("vocab_size", "query_pre_attn_scalar", "rope_theta")
        ),
        ({"head_dim": None}, "head_dim is None, expected a positive integer"),
        ({"attention_bias": True}, "attention_bias is True, but only False"),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ({"attn_logit_softcapping": 2.0}, "leaves out of this model"),
        ({"rope_scaling": {"factor": 8}}, "rope_scaling is"),
        ({"sliding_window_pattern": None}, "has no layer_types"),
        ({"layer_types": ["full_attention"]}, "expected 26 times"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters of full_attention is None"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ],
)
def test_a_configuration_that_is_not_ours_is_refused(change, message):
    document = {name: value for name, value in (BEFORE_VERSION_5 | change).items() if value is not ABSENT}
    with pytest.raises(ConfigurationError, match=message):
        config_from_hugging_face(document)


LLAMA = {
    "model_type": "llama",
    "vocab_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_theta": 1e4,
}


@pytest.mark.parametrize(
    "kinds", [5, {"full_attention": 1}, ["full_attention"], [["full_attention"]] * 2, ["sliding_attention"] * 2]
)
def test_a_llama_has_full_attention_in_each_layer(kinds):
    with pytest.raises(ConfigurationError, match=r"layer_types is .*, expected 'full_attention' for each of 2 layers"):
        llama.config_from_hugging_face(LLAMA | {"layer_types": kinds})
    assert llama.config_from_hugging_face(LLAMA | {"rope_parameters": None}).rope_base == 1e4


def test_parts_that_no_model_there_has_are_said():
    config = dataclasses.replace(OURS["vaultgemma_1m"].config, query_key_norms=True)
    with pytest.raises(ConfigurationError, match="no model of transformers"):
        config_to_hugging_face(config)


def test_a_state_that_lacks_a_parameter_or_has_another_shape_is_refused():
    layout, state = built("released")
    names, like = layout.names, layout.like()
    norm = "model.layers.1.input_layernorm.weight"
    with pytest.raises(StateError, match=f"has no {norm}; expected the parameters of a Gemma"):
        from_state({name: value for name, value in state.items() if name != norm}, names, "a Gemma")
    with pytest.raises(StateError, match=rf"{norm} is \(3,\), but the configuration says \(12,\)"):
        check_shapes(state | {norm: np.zeros(3)}, names, like)


def test_the_committed_logits_are_what_hugging_face_says_today(tmp_path):
    assert_said_today(decoder_logits, "transformers", COMMITTED, tmp_path, error=1e-5)
