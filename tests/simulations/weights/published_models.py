"""Folders of tiny models as their publishers write them."""

import json
import subprocess
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from benchmarks.simulation.peers.bert_logits import draw as draw_bert
from benchmarks.simulation.peers.decoder_logits import draw
from fedlm.models.base import Model
from fedlm.models.hugging_face.named_states import to_state
from fedlm.simulations.weights.importing import import_model
from fedlm.simulations.weights.layouts import read_layout
from fedlm.simulations.weights.tensor_files import open_tensors, write_tensors

ROOT = Path(__file__).parents[3]
PEERS_PYTHON = ROOT / "benchmarks" / "simulation" / "peers" / ".venv" / "bin" / "python"
GOLDEN = json.loads((ROOT / "tests" / "models" / "decoder_logits.json").read_text())["models"]


LETTERS = [*"\u2581abcdefghij"]
END = "<|endoftext|>"
END_IDS = {"bos_token_id": None, "eos_token_id": len(LETTERS)}
BERT = {
    "model_type": "bert",
    "vocab_size": 13,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
BERTS_TOKENS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "mat", "a"]


def gemma_tokenizer(folder):
    """Write a tokenizer.json of Gemma's kind with 15 ids: BPE, with its special tokens matched in text."""
    ids = {token: id_ for id_, token in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", *LETTERS])}
    made = tokenizers.Tokenizer(models.BPE(ids, [], unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Replace("\u2581", " ")
    made.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>"])
    made.save(str(folder / "tokenizer.json"))


def bert_tokenizer(folder):
    """Write BERT's, with its special tokens in its order."""
    made = tokenizers.Tokenizer(
        models.WordPiece({token: id_ for id_, token in enumerate(BERTS_TOKENS)}, unk_token="[UNK]")
    )
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made.save(str(folder / "tokenizer.json"))


def tokenizer_without_unknown(folder):
    """Write one of GPT-2's kind with 12 ids: BPE, with one special token, at the end."""
    ids = {token: id_ for id_, token in enumerate([*LETTERS, END])}
    made = tokenizers.Tokenizer(models.BPE(ids, []))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Replace("\u2581", " ")
    made.add_special_tokens([END])
    made.save(str(folder / "tokenizer.json"))


_TOKENIZERS = {"bert": bert_tokenizer, **dict.fromkeys(("gpt2", "qwen2", "qwen3"), tokenizer_without_unknown)}


def publish(folder, config, dtype="float32", shard_bytes=None):
    """Write a model's folder, whose weights are drawn by their names; returns its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    layout = read_layout(folder)
    zeros = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape), layout.like())
    _TOKENIZERS.get(config["model_type"], gemma_tokenizer)(folder)
    kind = getattr(ml_dtypes, dtype, dtype)
    drawn = draw_bert if config["model_type"] == "bert" else draw
    packed = layout.pack(to_state(zeros, layout.names))
    state = {name: drawn(name, leaf.shape).astype(kind) for name, leaf in packed.items()}
    write_tensors(folder, state, shard_bytes)
    return state


def import_published(folder, config, changes=None):
    """Publish a model, whose tensors are changed at (name, place), and import it, as folders `published` and `run`.

    Returns its tensors.
    """
    state = publish(folder / "published", config)
    for (name, place), value in (changes or {}).items():
        state[name][place] = value
    if changes:
        write_tensors(folder / "published", state)
    import_model(folder / "published", folder / "run")
    return state


def assert_same_tensors(folder, expected):
    """Compare the tensors of a folder with these, in name, type and every bit."""
    found = open_tensors(folder)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype.name
        assert np.asarray(found[name]).tobytes() == array.tobytes(), name


def skip_without(library):
    """Skip a test where the peers' environment lacks a library."""
    has_it = [PEERS_PYTHON, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec('{library}'))"]
    if not PEERS_PYTHON.exists() or subprocess.run(has_it).returncode:
        pytest.skip(f"{library} is not installed; run `make bench-peers`")


def built(stored) -> Model:
    """Build the model of what `read_run` returned."""
    return stored.entry.build("stored", stored.entry.config)
