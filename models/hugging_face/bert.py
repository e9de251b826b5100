"""The parameters of a BERT encoder under the names that Hugging Face's `BertForMaskedLM` gives them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlm.models.base import Params
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.bert import BertConfig
from fedlm.models.families.transformer import LARGEST_SIZE
from fedlm.models.hugging_face.gemma import check_fixed
from fedlm.models.hugging_face.named_states import StateError

_DENSE_OF_BLOCK = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "mlp_input": "intermediate.dense",
    "mlp_output": "output.dense",
}
_NORMS_OF_BLOCK = {"attention_norm": "attention.output.LayerNorm", "mlp_norm": "output.LayerNorm"}
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""What their state has twice."""


_SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "embedding": "hidden_size",
    "mlp": "intermediate_size",
    "max_length": "max_position_embeddings",
    "token_types": "type_vocab_size",
}
_MUST_BE: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu",),
    "layer_norm_eps": (1e-12,),
    "position_embedding_type": ("absolute", None),
    "tie_word_embeddings": (True, None),
    "is_decoder": (False, None),
}


def config_from_hugging_face(document: Mapping[str, Any]) -> BertConfig:
    """Read a config.json of a BERT.

    Raises:
      ConfigurationError: a field is missing, or says what our model has not got.
    """
    check_fixed(document, _MUST_BE)
    for name in ("vocab_size", *_SIZES.values()):
        if type(document.get(name)) is not int or not 1 <= document[name] <= LARGEST_SIZE:
            raise ConfigurationError(f"{name} is {document.get(name)!r}, expected a positive integer")
    # The mask's id is not among those of the data.
    sizes = {ours: document[theirs] for ours, theirs in _SIZES.items()}
    return BertConfig(vocabulary_size=document["vocab_size"] - 1, **sizes)


def config_to_hugging_face(config: BertConfig) -> dict[str, Any]:
    """Make a config.json that `config_from_hugging_face` reads as the same, and so does `transformers`."""
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": config.vocabulary_size + 1,
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    }


def check_tied(state: Mapping[str, Any], tied: Mapping[str, str]) -> None:
    """Refuse, as a StateError, a state where an array differs from the one that it is tied with; it may be absent."""
    for name, twin in tied.items():
        if name in state and not np.array_equal(np.asarray(state[name]), np.asarray(state[twin])):
            raise StateError(f"{name} differs from {twin}; our output layer is tied with the embedding")


def names_in_hugging_face(layers: int) -> Params:
    """Arrange their names as our parameters are arranged."""
    embeddings, head = "bert.embeddings", "cls.predictions"
    return {
        "embedding": {"table": f"{embeddings}.word_embeddings.weight"},
        "positions": {"table": f"{embeddings}.position_embeddings.weight"},
        "token_types": {"table": f"{embeddings}.token_type_embeddings.weight"},
        "embedding_norm": _norm(f"{embeddings}.LayerNorm"),
        "blocks": [_block(f"bert.encoder.layer.{layer}") for layer in range(layers)],
        "head": _dense(f"{head}.transform.dense"),
        "head_norm": _norm(f"{head}.transform.LayerNorm"),
        "output_bias": f"{head}.bias",
    }


def _block(prefix: str) -> Params:
    dense = {ours: _dense(f"{prefix}.{theirs}") for ours, theirs in _DENSE_OF_BLOCK.items()}
    return dense | {ours: _norm(f"{prefix}.{theirs}") for ours, theirs in _NORMS_OF_BLOCK.items()}


def _dense(prefix: str) -> Params:
    return {"kernel": f"{prefix}.weight", "bias": f"{prefix}.bias"}


def _norm(prefix: str) -> Params:
    return {"scale": f"{prefix}.weight", "shift": f"{prefix}.bias"}
