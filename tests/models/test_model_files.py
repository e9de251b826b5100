"""Models by their descriptions, and special tokens that a vocabulary brings."""

import json

import jax
import jax.numpy as jnp
import pytest

from fedlm.models.base import Batch
from fedlm.models.errors import ConfigurationError
from fedlm.models.model_files import ARCHITECTURES, describe_model, read_description
from fedlm.models.registry import MODELS, ModelEntry, create_model, same_model
from fedlm.models.special_tokens import GEMMA, OWN


def test_descriptions_of_all_named_models_come_back():
    for entry in MODELS.values():
        assert ModelEntry(*read_description(json.loads(json.dumps(describe_model(*entry))))) == entry


def test_a_model_is_made_of_a_file(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(describe_model(*MODELS["vaultgemma_1m"])))
    model = create_model(str(path), 50, GEMMA)
    assert (model.name, model.vocabulary_size, model.special_tokens) == (str(path), 50, GEMMA)
    assert same_model(str(path), "vaultgemma_1m")
    assert not same_model(str(path), "vaultgemma_10m")
    assert not same_model(str(tmp_path / "none.json"), "vaultgemma_1m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "llama"}, f"architecture is 'llama', expected one of {', '.join(ARCHITECTURES)}"),
        ({"config": {}}, "has not the fields of a cifg"),
        ({"config": {"embedding": "big"}}, "embedding is 'big'"),
        ({"config": {"embedding": -1}}, "embedding is -1"),
        ({"config": {"tied": 1}}, "tied is 1"),
    ],
)
def test_a_description_that_is_none_is_refused(tmp_path, change, message):
    document = describe_model(*MODELS["cifg_tiny"])
    config = document["config"] | change["config"] if change.get("config") else change.get("config", document["config"])
    (tmp_path / "model.json").write_text(json.dumps(document | change | {"config": config}))
    with pytest.raises(ConfigurationError, match=f"model.json: .*{message}"):
        create_model(str(tmp_path / "model.json"))


def test_a_model_of_ones_own_without_special_tokens_knows_ours_alone(tmp_path, monkeypatch):
    (tmp_path / "plain_model.py").write_text(
        "import dataclasses\n"
        "from fedlm.models.base import language_model\n"
        "from fedlm.models.registry import ModelEntry\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Config:\n    vocabulary_size: int = 9\n"
        "def build(name, config):\n"
        "    return language_model(name, config.vocabulary_size, lambda key: {}, lambda params, tokens: tokens)\n"
        "ENTRY = ModelEntry(build, Config())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert create_model("plain_model:ENTRY", 7, OWN).vocabulary_size == 7
    with pytest.raises(ConfigurationError, match="no field special_tokens"):
        create_model("plain_model:ENTRY", 7, GEMMA)


@pytest.mark.long
def test_scores_leave_out_the_end_that_the_vocabulary_has():
    tokens = jnp.array([[GEMMA.bos, 5, 6, GEMMA.eos, 0, 0]])
    for special_tokens, scored in ((GEMMA, 2), (OWN, 3)):
        model = create_model("transformer_tiny", 9, special_tokens)
        found = model.loss(model.init(jax.random.key(0)), Batch(tokens, jnp.ones(1)))
        assert (float(found.tokens[0]), float(found.scored_tokens[0])) == (3, scored)
