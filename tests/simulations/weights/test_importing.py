"""Published models in, and out again."""

import json
import shutil

import jax
import numpy as np
import pytest

from fedlm.fl_core.errors import CheckpointError, ConfigurationError, DataError
from fedlm.models.special_tokens import GEMMA, OWN
from fedlm.simulations.weights.exporting import export_model, read_run
from fedlm.simulations.weights.importing import import_model
from fedlm.simulations.weights.tensor_files import open_tensors, write_tensors
from tests.simulations.weights.published_models import (
    BERT,
    BERTS_TOKENS,
    GOLDEN,
    assert_same_tensors,
    built,
    import_published,
    publish,
)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma3")
    state = publish(folder / "published", GOLDEN["gemma3"]["config"], "bfloat16", shard_bytes=2000)
    import_model(folder / "published", folder / "run")
    return folder, state


@pytest.fixture
def copied(gemma3, tmp_path):
    shutil.copytree(gemma3[0] / "published", tmp_path / "published")
    return tmp_path / "published"


def test_several_files_of_bfloat16_come_back_bit_for_bit(gemma3, tmp_path):
    folder, state = gemma3
    assert len(list((folder / "published").glob("*.safetensors"))) > 3
    written = export_model(folder / "run", tmp_path / "out", "huggingface")
    assert written.dtypes == ("bfloat16",)
    assert_same_tensors(tmp_path / "out", state)
    folders = (tmp_path / "out", folder / "published")
    config, theirs = (json.loads((place / "config.json").read_text()) for place in folders)
    assert config["dtype"] == "bfloat16"
    for name in set(config) & set(theirs) - {"architectures", "dtype"}:
        assert config[name] == theirs[name], name
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (folder / "published" / "tokenizer.json").read_bytes()


def test_the_tokenizer_is_gemmas_but_no_text_is_a_special_token(gemma3):
    stored = read_run(gemma3[0] / "run")
    assert stored.tokenizer.special_tokens == GEMMA
    assert (stored.tokenizer.vocabulary_size, built(stored).special_tokens) == (19, GEMMA)
    (ids,) = stored.tokenizer.encode_batch(["a <bos> b"])
    assert not {0, 1, 2} & set(ids.tolist())
    assert stored.tokenizer.decode([2, 5, 4, 6, 1]) == "a b"


def test_our_own_layout_comes_back(gemma3, tmp_path):
    folder, _ = gemma3
    export_model(folder / "run", tmp_path / "own", "safetensors")
    import_model(tmp_path / "own", tmp_path / "run")
    found, expected = read_run(tmp_path / "run"), read_run(folder / "run")
    jax.tree_util.tree_map(np.testing.assert_array_equal, found.params, expected.params)
    assert (found.entry, found.tokenizer.fingerprint) == (expected.entry, expected.tokenizer.fingerprint)
    assert {tensor.dtype for tensor in open_tensors(tmp_path / "own").values()} == {"bfloat16"}


def test_rows_of_bert_are_in_our_order_and_go_back(tmp_path):
    state = import_published(tmp_path, BERT)
    stored = read_run(tmp_path / "run")
    tokenizer, table = stored.tokenizer, stored.params["embedding"]["table"]
    assert tokenizer.special_tokens == OWN
    theirs = state["bert.embeddings.word_embeddings.weight"]
    for ours, name in [(0, "[PAD]"), (1, "[CLS]"), (2, "[SEP]"), (3, "[UNK]"), (12, "[MASK]")]:
        np.testing.assert_array_equal(table[ours], theirs[BERTS_TOKENS.index(name)])
    (ids,) = tokenizer.encode_batch(["The cats sat [MASK]"])
    np.testing.assert_array_equal(
        table[ids[:4]], theirs[[BERTS_TOKENS.index(name) for name in ("the", "cat", "##s", "sat")]]
    )
    assert 12 not in ids
    export_model(tmp_path / "run", tmp_path / "out", "huggingface")
    assert_same_tensors(tmp_path / "out", state)


# What does not fit


def test_a_cut_file_is_named(copied, tmp_path):
    path = sorted(copied.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match=f"{path.name}: is cut off, or no safetensors file"):
        import_model(copied, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_file_and_a_missing_tensor_are_named(copied, tmp_path):
    index = copied / "model.safetensors.index.json"
    record = json.loads(index.read_text())
    file = record["weight_map"].pop("model.norm.weight")
    index.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"has no tensor model\.norm\.weight; expected the parameters of a Gemma"):
        import_model(copied, tmp_path / "run")
    record["weight_map"] |= {"model.norm.weight": file, "model.layers.9.x": file}
    index.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"has no tensor model\.layers\.9\.x, which .* says it has"):
        import_model(copied, tmp_path / "run")
    (copied / file).unlink()
    with pytest.raises(DataError, match=f"{file}: there is no such file"):
        import_model(copied, tmp_path / "run")
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(DataError, match=r"names the file '\.\./secret\.safetensors'"):
        import_model(copied, tmp_path / "run")


def test_pickles_are_never_read(copied, tmp_path):
    for path in copied.glob("model*"):
        path.unlink()
    (copied / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pickled'\ntR.")
    with pytest.raises(DataError, match=r"pytorch_model\.bin, a pickle, which could run anything and is never read"):
        import_model(copied, tmp_path / "run")


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    changes = {("model.norm.weight", 2): np.nan, ("model.norm.weight", 5): -np.inf}
    with pytest.raises(DataError, match=r"tensor model\.norm\.weight has 2 values that are no finite numbers"):
        import_published(tmp_path, GOLDEN["gemma2"]["config"], changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "opt"}, "model_type is 'opt', expected one of bert, vaultgemma, gemma2, gemma3_text, llama"),
        ({"head_dim": 8}, r"o_proj.weight is \(12, 24\), but the configuration says \(12, 32\)"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}, r"has the tensor model\.layers\.2\."),
        ({"model_type": "vaultgemma", "rope_parameters": {"rope_theta": 10.0}}, "has no use for"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a positive number"),
        ({"final_logit_softcapping": float("inf")}, "final_logit_softcapping is inf, expected a positive number"),
        ({"vocab_size": 10**9}, r"embed_tokens.weight is \(19, 12\), but the configuration says \(1000000000, 12\)"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000000000000000000000000000, expected a positive integer"),
        ({"num_hidden_layers": 10**8}, "layers is 100000000, but must be at most 1000"),
        ({"layer_types": [{}, {}, {}]}, r"layer_types is \[{}, {}, {}\], expected 3 times"),
    ],
)
def test_a_configuration_of_another_model_is_refused(copied, tmp_path, change, message):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(DataError, match=message):
        import_model(copied, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "config.json: cannot be read"),
        ("config.json", 100_000 * "[", "config.json: cannot be read"),
        ("config.json", '{"format": "fedlm-model", "format_version": 1, "model": {"architecture": []}}', "ture is"),
        ("model.safetensors.index.json", 100_000 * "[", "index.json: cannot be read"),
        ("tokenizer.json", 100_000 * "[", "tokenizer.json: cannot be read"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 1, "b": 2, "c": 2}}}', "the tokens 'b', 'c' have the same id, 2"),
        ("config.json", "[]", "found a list, expected a model's configuration"),
        ("config.json", '{"format": "fedlm-model", "format_version": 2}', "format_version is 2"),
        ("tokenizer.json", "[1]", "found no model with a vocabulary"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0, "b": 1}}}', "tokenizer.json: tokenizer: ids 0 to 3 are"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 40}}}', "its ids go from 40 to 40, but the model has 19 rows"),
        ("tokenizer.json", '{"model": {"vocab": {"a": -1}}}', "its ids go from -1 to -1, but the model has 19 rows"),
    ],
)
def test_damaged_files_are_named(copied, tmp_path, name, content, message):
    (copied / name).write_text(content)
    with pytest.raises(DataError, match=message):
        import_model(copied, tmp_path / "run")


def test_a_bert_with_further_layers_or_other_heads_is_refused(tmp_path):
    state = publish(tmp_path / "published", BERT)
    state["bert.encoder.layer.1.output.dense.bias"] = np.zeros(8, np.float32)
    write_tensors(tmp_path / "published", state)
    with pytest.raises(DataError, match=r"has the tensor bert\.encoder\.layer\.1\.output\.dense\.bias, which"):
        import_model(tmp_path / "published", tmp_path / "run")
    (tmp_path / "published" / "config.json").write_text(json.dumps(BERT | {"num_attention_heads": 3}))
    with pytest.raises(DataError, match="embedding is 8, but must be a multiple of heads, which is 3"):
        import_model(tmp_path / "published", tmp_path / "run")


def test_our_own_layout_has_no_other_tensors(gemma3, tmp_path):
    export_model(gemma3[0] / "run", tmp_path / "own", "safetensors")
    tensors = {name: np.asarray(tensor) for name, tensor in open_tensors(tmp_path / "own").items()}
    write_tensors(tmp_path / "own", tensors | {"blocks.3.query.kernel": np.zeros(3, np.float32)})
    with pytest.raises(DataError, match=r"has the tensor blocks\.3\.query\.kernel, which a published_decoder"):
        import_model(tmp_path / "own", tmp_path / "run")


def test_nothing_is_written_over(copied, gemma3, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(ConfigurationError, match="is there already"):
        import_model(copied, tmp_path / "run")
    with pytest.raises(ConfigurationError, match="is there already"):
        export_model(gemma3[0] / "run", tmp_path / "run", "safetensors")
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        export_model(tmp_path / "run", tmp_path / "out", "safetensors")
