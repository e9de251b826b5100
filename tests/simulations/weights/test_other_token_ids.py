"""Models whose publishers have other special tokens than we: GPT-2, Llama, Mistral and Qwen."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.models.base import Batch
from fedlm.models.hugging_face.named_states import from_state
from fedlm.models.special_tokens import EOS_ID, OOV_ID, OWN, PAD_ID
from fedlm.simulations.data.vocabulary.adopted_tokenizers import TokenIds, adopt_tokenizer
from fedlm.simulations.weights.exporting import export_model, read_run
from fedlm.simulations.weights.importing import import_model
from fedlm.simulations.weights.layouts import read_layout
from fedlm.simulations.weights.tensor_files import open_tensors, write_tensors
from tests.simulations.weights.published_models import (
    END,
    END_IDS,
    GOLDEN,
    assert_same_tensors,
    built,
    import_published,
    publish,
)

IDS = {"llama": {}, "tied_llama": {}, "mistral": {}, "qwen2": END_IDS, "qwen3": END_IDS, "gpt2": END_IDS}
ROWS = 19
TEXT = "abc def\u00e9 <|endoftext|> [EOS] 12"


@pytest.mark.parametrize("name", IDS)
def test_logits_are_those_of_the_published_model_and_its_weights_go_out_as_they_came(tmp_path, name):
    folder, state = tmp_path, import_published(tmp_path, GOLDEN[name]["config"] | IDS[name])
    layout, stored = read_layout(folder / "published"), read_run(folder / "run")
    adopted = layout.adopt(folder / "published" / "tokenizer.json")
    inputs = np.array([[4, 6, 10, 5], [9, 8, 4, 18]])
    params = from_state(layout.unpack(state), layout.names, "")
    expected = jax.jit(layout.model.apply)(params, jnp.asarray(inputs))
    ours = adopted.rows_of_theirs()
    assert len(ours) == ROWS
    found = np.asarray(jax.jit(built(stored).apply)(stored.params, jnp.asarray(ours[inputs])))
    np.testing.assert_allclose(found[..., ours], expected, rtol=1e-6, atol=1e-6)
    assert (found[..., list(adopted.never_predicted)] < -9e3).all()
    # What our special tokens are read as: their own, or the end of a text.
    assert stored.entry.config.never_predicted == adopted.never_predicted
    assert PAD_ID in adopted.never_predicted
    assert EOS_ID not in adopted.never_predicted
    table = stored.params["embedding"]["table"]
    np.testing.assert_array_equal(table[PAD_ID], table[EOS_ID])
    export_model(folder / "run", folder / "out", "huggingface")
    assert_same_tensors(folder / "out", state)
    documents = [json.loads((folder / name / "config.json").read_text()) for name in ("published", "out")]
    for key in ("model_type", "vocab_size", "bos_token_id", "eos_token_id"):
        assert documents[0][key] == documents[1][key]
    assert read_layout(folder / "out") == layout


def test_our_own_layout_is_all_that_goes_out_without_the_published_tokenizer(tmp_path):
    import_published(tmp_path, GOLDEN["gpt2"]["config"] | END_IDS)
    (tmp_path / "run" / "original" / "tokenizer.json").unlink()
    with pytest.raises(ConfigurationError, match=r"published with is not beside it any more.*safetensors"):
        export_model(tmp_path / "run", tmp_path / "again", "huggingface")
    export_model(tmp_path / "run", tmp_path / "again", "safetensors")
    import_model(tmp_path / "again", tmp_path / "third")
    found, expected = (read_run(tmp_path / name).params for name in ("third", "run"))
    jax.tree_util.tree_map(np.testing.assert_array_equal, found, expected)


@pytest.mark.long
def test_a_loss_is_that_of_the_published_model(tmp_path):
    """With our special tokens around a text, of which theirs has one alone."""
    state = import_published(tmp_path, GOLDEN["gpt2"]["config"] | END_IDS)
    layout, stored = read_layout(tmp_path / "published"), read_run(tmp_path / "run")
    text = stored.tokenizer.encode_batch(["abc de"])[0]
    batch = Batch(jnp.asarray([[OWN.bos, *text, OWN.eos, PAD_ID, PAD_ID]]), jnp.ones(1))
    found = jax.jit(built(stored).loss)(stored.params, batch).loss
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "published" / "tokenizer.json")).encode("abc de").ids
    end = END_IDS["eos_token_id"]
    logits = layout.model.apply(from_state(layout.unpack(state), layout.names, ""), jnp.asarray([[end, *theirs]]))
    expected = -jax.nn.log_softmax(logits[0])[np.arange(len(theirs) + 1), [*theirs, end]].sum()
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


@pytest.fixture
def byte_level(tmp_path):
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["abc def abc def"] * 3, trainer)
    made.add_special_tokens([END])
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json", made


@pytest.mark.parametrize("same", [True, False])
def test_texts_have_the_same_tokens_and_come_back(byte_level, same):
    path, theirs = byte_level
    end, rows = theirs.token_to_id(END), theirs.get_vocab_size() + 3
    adopted = adopt_tokenizer(path, rows, False, TokenIds(end if same else None, end))
    assert adopted.never_predicted == (0, 1, 3)
    assert adopted.tokenizer.special_tokens == OWN
    assert adopted.tokenizer.vocabulary_size == len(adopted.rows) == rows + 3
    for text in ("abc def\u00e9 12", ""):
        (ids,) = adopted.tokenizer.encode_batch([text])
        assert adopted.rows[ids].tolist() == theirs.encode(text).ids
        assert adopted.tokenizer.decode(ids) == text
    (ids,) = adopted.tokenizer.encode_batch([TEXT])
    assert min(ids) > OOV_ID
    assert adopted.tokenizer.decode(ids) == TEXT


def test_a_llama_of_before_bases_could_be_chosen_is_read(tmp_path):
    """As the second Llama was published: without a base, and with its frequencies among the tensors."""
    config = GOLDEN["llama"]["config"] | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    state = publish(tmp_path / "new", config)
    old = {name: value for name, value in config.items() if name != "rope_parameters"}
    publish(tmp_path / "old", old | {"rope_scaling": None, "pretraining_tp": 1})
    frequencies = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": np.ones(3, np.float64) for layer in range(2)}
    write_tensors(tmp_path / "old", state | frequencies)
    for name in ("old", "new"):
        import_model(tmp_path / name, tmp_path / f"run_{name}")
    found, expected = (read_run(tmp_path / f"run_{name}") for name in ("old", "new"))
    assert found.entry.config == expected.entry.config
    jax.tree_util.tree_map(np.testing.assert_array_equal, found.params, expected.params)
    (tmp_path / "old" / "config.json").write_text(json.dumps(old | {"model_type": "mistral"}))
    with pytest.raises(DataError, match="has no rope_theta"):
        import_model(tmp_path / "old", tmp_path / "run")


def test_what_does_not_fit_is_refused(tmp_path):
    publish(tmp_path / "published", GOLDEN["llama"]["config"])
    document = json.loads((tmp_path / "published" / "config.json").read_text())
    for change, message in (
        ({"eos_token_id": None}, "has no eos_token_id"),
        ({"eos_token_id": 19}, "eos_token_id is 19, expected an id below 19"),
        ({"bos_token_id": "1"}, "bos_token_id is '1'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "only rope_type 'default'"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings is None, expected true or false"),
        ({"tie_word_embeddings": True}, None),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"model_type": "qwen2"}, "has no tensor model.layers.0.self_attn.k_proj.bias"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2}, "layer_types is"),
    ):
        (tmp_path / "published" / "config.json").write_text(json.dumps(document | change))
        with pytest.raises(DataError, match=message):
            import_model(tmp_path / "published", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_first_gpt_2s_are_read(tmp_path):
    """Whose names lack a prefix, and which have masks among their weights."""
    state = publish(tmp_path / "published", GOLDEN["gpt2"]["config"] | END_IDS)
    older = {name.removeprefix("transformer."): array for name, array in state.items()}
    older |= {"h.0.attn.bias": np.ones((1, 1, 16, 16), np.uint8), "h.1.attn.bias": np.ones((1, 1, 16, 16))}
    write_tensors(tmp_path / "published", older)
    import_model(tmp_path / "published", tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "out", "huggingface")
    assert set(open_tensors(tmp_path / "out")) == set(state)
