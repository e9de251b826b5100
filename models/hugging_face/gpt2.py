"""Configurations and parameters of GPT-2 as Hugging Face's `transformers` 5.23 has them.

Its dense layers are `[inputs, outputs]` there, unlike those of all others, and queries, keys and values come of one. So
a state is unpacked to one where each layer is by itself, and as others have it; `pack` does the reverse.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlm.models.base import Params
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.published_decoder_config import PublishedDecoderConfig
from fedlm.models.families.transformer import check_layers
from fedlm.models.hugging_face.gemma import check_fixed, is_read_as, number

_SIZES = {"vocabulary_size": "vocab_size", "layers": "n_layer", "heads": "n_head", "embedding": "n_embd"}
_MUST_BE: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True, None),
    "scale_attn_by_inverse_layer_idx": (False, None),
    "add_cross_attention": (False, None),
    "tie_word_embeddings": (True, None),
}
_PREFIX, _FUSED = "transformer.", "attn.c_attn"
_PARTS = ("query", "key", "value")
_KERNELS = {"attention_output": "attn.c_proj", "mlp_input": "mlp.c_fc", "mlp_output": "mlp.c_proj"}
_MASKS = (".attn.bias", ".attn.masked_bias")
"""How names end of what some files have, and no model has as a parameter."""
TIED = {"lm_head.weight": "transformer.wte.weight"}


def config_from_hugging_face(document: Mapping[str, Any]) -> PublishedDecoderConfig:
    """Read the config.json of a GPT-2.

    Raises:
      ConfigurationError: a field is missing or of no use, or says what our model has not got.
    """
    check_fixed(document, _MUST_BE)
    sizes = {ours: number(document, theirs, int) for ours, theirs in _SIZES.items()}
    check_layers(sizes["layers"])
    if sizes["embedding"] % sizes["heads"]:
        raise ConfigurationError(f"n_embd is {sizes['embedding']}, expected a multiple of n_head, {sizes['heads']}")
    inner = document.get("n_inner")
    return PublishedDecoderConfig(
        **sizes,
        key_value_heads=sizes["heads"],
        head_size=sizes["embedding"] // sizes["heads"],
        mlp=4 * sizes["embedding"] if inner is None else number(document, "n_inner", int),
        max_length=number(document, "n_positions", int),
        query_scale=sizes["embedding"] // sizes["heads"],
        epsilon=number(document, "layer_norm_epsilon"),
        rope_base=10_000.0,
        norm="layer_norm",
        positions="learned",
        activation="gelu",
        gated=False,
        biases="all",
        scaled_embedding=False,
        tied=True,
    )


def config_to_hugging_face(config: PublishedDecoderConfig) -> dict[str, Any]:
    """Make a config.json that `config_from_hugging_face` reads as the same, and so does `transformers`.

    Raises:
      ConfigurationError: it has other parts than GPT-2.
    """
    document = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "n_positions": config.max_length,
        "n_inner": config.mlp,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.epsilon,
        **{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
        "tie_word_embeddings": True,
    }
    if not is_read_as(config, document, config_from_hugging_face):
        raise ConfigurationError("it has other parts than GPT-2; export it as safetensors")
    return document


def names_in_hugging_face(config: PublishedDecoderConfig) -> Params:
    """Arrange the names of an unpacked state as our parameters are arranged."""

    def both(prefix: str, first: str, second: str, part: str = "") -> Params:
        return {first: f"{prefix}.weight{part}", second: f"{prefix}.bias{part}"}

    def block(prefix: str) -> Params:
        fused = {part: both(f"{prefix}.{_FUSED}", "kernel", "bias", f"[{part}]") for part in _PARTS}
        return {
            **fused,
            **{ours: both(f"{prefix}.{theirs}", "kernel", "bias") for ours, theirs in _KERNELS.items()},
            "attention_norm": both(f"{prefix}.ln_1", "scale", "shift"),
            "mlp_norm": both(f"{prefix}.ln_2", "scale", "shift"),
        }

    return {
        "embedding": {"table": f"{_PREFIX}wte.weight"},
        "positions": {"table": f"{_PREFIX}wpe.weight"},
        "blocks": [block(f"{_PREFIX}h.{layer}") for layer in range(config.layers)],
        "final_norm": both(f"{_PREFIX}ln_f", "scale", "shift"),
    }


class _Part:
    """A part of a tensor, turned to `[outputs, inputs]`, read when an array is made of it."""

    def __init__(self, tensor: Any, number: int, parts: int):
        *inputs, outputs = tensor.shape
        self._tensor, self._number, self._parts = tensor, number, parts
        self.shape, self.dtype = (outputs // parts, *inputs), tensor.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = np.split(np.asarray(self._tensor), self._parts, axis=-1)[self._number].T
        return found if dtype is None else found.astype(dtype, copy=False)


def unpack(state: Mapping[str, Any]) -> dict[str, Any]:
    """Make of a GPT-2's state, of arrays or what becomes one, that which `names_in_hugging_face` names."""
    prefix = "" if any(name.startswith(_PREFIX) for name in state) else _PREFIX
    unpacked: dict[str, Any] = {}
    for name, tensor in state.items():
        name = name if name in TIED else prefix + name
        if name.endswith(_MASKS):
            continue
        layer, _, kind = name.rpartition(".")
        if tensor.shape and layer.endswith(_FUSED) and tensor.shape[-1] % len(_PARTS) == 0:
            unpacked |= {f"{name}[{part}]": _Part(tensor, place, len(_PARTS)) for place, part in enumerate(_PARTS)}
        elif tensor.shape and kind == "weight" and layer.endswith(tuple(_KERNELS.values())):
            unpacked[name] = _Part(tensor, 0, 1)
        else:
            unpacked[name] = tensor
    return unpacked


def pack(state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Make a GPT-2's state of an unpacked one."""
    packed: dict[str, NDArray[Any]] = {}
    for name, array in state.items():
        whole, _, part = name.partition("[")
        if part == f"{_PARTS[0]}]":
            joined = np.concatenate([state[f"{whole}[{each}]"] for each in _PARTS])
            packed[whole] = joined.T
        elif not part:
            layer = name.rpartition(".")[0]
            packed[name] = array.T if layer.endswith(tuple(_KERNELS.values())) else array
    return packed
