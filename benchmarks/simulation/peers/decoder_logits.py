"""Logits of Hugging Face's decoders of several shapes, for the tests of `models/families/published_decoder.py`.

Weights are drawn from each parameter's name, so that both sides draw the same ones. To write the committed file anew:

    PYTHON=benchmarks/simulation/peers/.venv/bin/python
    $PYTHON -m benchmarks.simulation.peers.decoder_logits tests/models/decoder_logits.json
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

INPUTS = np.array([[2, 4, 12, 6, 7, 8, 13, 5, 1], [2, 12, 5, 5, 5, 18, 11, 10, 9]])

_OF_GEMMA = {
    "vocab_size": 19,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 6,
    "max_position_embeddings": 16,
    "query_pre_attn_scalar": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_OF_LLAMA = {
    "vocab_size": 19,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 16,
    "rms_norm_eps": 0.01,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "eos_token_id": 2,
}
_FULL, _WINDOW = "full_attention", "sliding_attention"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "released": ("vaultgemma", {"layer_types": [_FULL, _FULL], "sliding_window": 4}),
    "one_head_of_keys": (
        "vaultgemma",
        {
            "num_key_value_heads": 1,
            "layer_types": [_WINDOW, _FULL],
            "sliding_window": 3,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "rms_norm_eps": 0.01,
        },
    ),
    "wide": ("vaultgemma", {"hidden_size": 20, "head_dim": 8, "layer_types": [_FULL] * 3, "num_hidden_layers": 3}),
    "gemma2": (
        "gemma2",
        {
            "num_key_value_heads": 2,
            "num_hidden_layers": 3,
            "layer_types": [_WINDOW, _FULL, _WINDOW],
            "sliding_window": 4,
            "query_pre_attn_scalar": 10,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "layer_types": [_WINDOW, _WINDOW, _FULL],
            "sliding_window": 3,
            "rope_parameters": {
                _FULL: {"rope_type": "default", "rope_theta": 1000.0},
                _WINDOW: {"rope_type": "default", "rope_theta": 10.0},
            },
        },
    ),
    "llama": ("llama", {"tie_word_embeddings": False}),
    "tied_llama": ("llama", {"tie_word_embeddings": True, "head_dim": None, "hidden_size": 16}),
    "mistral": ("mistral", {"sliding_window": 3, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "hidden_size": 24}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "gpt2": ("gpt2", {"vocab_size": 19, "n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 16, "eos_token_id": 2}),
}
"""By name: the type of the model, and what its configuration has apart from the sizes above."""


def sizes(model_type: str) -> dict[str, Any]:
    """Give what all models of a type have."""
    return _OF_GEMMA if "gemma" in model_type else {} if model_type == "gpt2" else _OF_LLAMA


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a parameter, float32 about 0, of what Hugging Face calls it and its shape there."""
    # The streams of RandomState are frozen for good.
    return (0.4 * np.random.RandomState(zlib.crc32(name.encode())).normal(size=shape)).astype(np.float32)


def main() -> None:
    """Compute them in float32 and write them, with each config.json, to the file that the command line names."""
    import torch
    import transformers

    found: dict[str, Any] = {"transformers": transformers.__version__, "models": {}}
    for name, (model_type, fields) in MODELS.items():
        config = transformers.AutoConfig.for_model(model_type, **sizes(model_type) | fields)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(draw(parameter_name, tuple(parameter.shape))))
            logits = model(input_ids=torch.from_numpy(INPUTS), use_cache=False).logits
        rounded = [[[float(f"{value:.6g}") for value in row] for row in rows] for rows in logits.numpy().tolist()]
        found["models"][name] = {"config": json.loads(config.to_json_string(use_diff=False)), "logits": rounded}
    Path(sys.argv[1]).write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
