"""Configurations and parameters of Gemma decoders as Hugging Face's `transformers` 5.23 has them.

A configuration is what config.json says. What decides of a model's numbers must be in it: the library's defaults are
those of one published model of each family, and not of its others.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedlm.models.base import Params
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.published_decoder_config import PublishedDecoderConfig
from fedlm.models.families.transformer import LARGEST_SIZE, check_layers

_GELU = "gelu_pytorch_tanh"
LAYER_KINDS = _FULL, _WINDOW = "full_attention", "sliding_attention"


class _Family(NamedTuple):
    """What the models of a type have."""

    architecture: str
    post_norms: bool
    query_key_norms: bool
    two_bases: bool  # whether layers with a window have rotary positions of their own
    attention_cap: bool  # whether scores can have a cap
    window_pattern: int | None  # every so many-th layer sees all where a configuration does not list its layers


FAMILIES = {
    "vaultgemma": _Family("VaultGemmaForCausalLM", False, False, False, True, None),
    "gemma2": _Family("Gemma2ForCausalLM", True, False, False, True, 2),
    "gemma3_text": _Family("Gemma3ForCausalLM", True, True, True, False, None),
}
"""By the `model_type` of config.json."""

SIZES = {
    "vocabulary_size": "vocab_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "embedding": "hidden_size",
    "mlp": "intermediate_size",
    "max_length": "max_position_embeddings",
}
_MUST_BE: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "tie_word_embeddings": (True, None),
    "use_bidirectional_attention": (False, None),
    "rope_scaling": (None,),
    "hidden_act": (_GELU, None),
    "hidden_activation": (_GELU, None),
}
_NORMS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
KERNELS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "mlp_gate": "mlp.gate_proj",
    "mlp_input": "mlp.up_proj",
    "mlp_output": "mlp.down_proj",
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def config_from_hugging_face(document: Mapping[str, Any]) -> PublishedDecoderConfig:
    """Read a config.json, whose `model_type` is one of `FAMILIES`.

    Raises:
      ConfigurationError: a field is missing or of no use, or says what our model has not got.
    """
    family = FAMILIES[document["model_type"]]
    check_fixed(document, _MUST_BE)
    if document.get("hidden_activation", document.get("hidden_act")) is None:
        raise ConfigurationError(f"has no hidden_activation, expected {_GELU!r}")
    sizes = {ours: number(document, theirs, int) for ours, theirs in SIZES.items()}
    check_layers(sizes["layers"])
    attention_cap = _optional_cap(document, "attn_logit_softcapping")
    if attention_cap is not None and not family.attention_cap:
        raise ConfigurationError(
            f"attn_logit_softcapping is {attention_cap}, which transformers leaves out of this model; expected null"
        )
    bases = _rope_bases(document, family)
    return PublishedDecoderConfig(
        **sizes,
        query_scale=number(document, "query_pre_attn_scalar"),
        epsilon=number(document, "rms_norm_eps"),
        rope_base=bases[_FULL],
        windows=_windows(document, family, sizes["layers"]),
        window_rope_base=bases[_WINDOW] if family.two_bases else None,
        attention_cap=attention_cap,
        logit_cap=_optional_cap(document, "final_logit_softcapping"),
        post_norms=family.post_norms,
        query_key_norms=family.query_key_norms,
        norm="rms_norm_1",
        positions="rotary",
        activation="gelu",
        gated=True,
        biases="none",
        scaled_embedding=True,
        tied=True,
    )


def is_read_as(
    config: PublishedDecoderConfig,
    document: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], PublishedDecoderConfig],
) -> bool:
    """Say whether what was written of a configuration is read as the same, but for its special tokens."""
    try:
        return dataclasses.replace(read(document), special_tokens=config.special_tokens) == config
    except ConfigurationError:
        return False


def check_fixed(document: Mapping[str, Any], must_be: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse, as a ConfigurationError, a configuration with a field that is none of the values that are known."""
    for name, accepted in must_be.items():
        if document.get(name) not in accepted:
            raise ConfigurationError(f"{name} is {document.get(name)!r}, but only {accepted[0]!r} is known")


def number(document: Mapping[str, Any], name: str, kind: type = float) -> Any:
    """Take a positive number of a configuration; ConfigurationError where it has none by that name."""
    value: Any = document.get(name)
    most = LARGEST_SIZE if type(value) is int else math.inf
    if type(value) not in (int, kind) or not 0 < value < most:
        found = f"{name} is {value!r}" if name in document else f"has no {name}"
        raise ConfigurationError(f"{found}, expected a positive {'integer' if kind is int else 'number'}")
    return kind(value)


def _optional_cap(document: Mapping[str, Any], name: str) -> float | None:
    if name not in document:
        raise ConfigurationError(f"has no {name}, expected a number, or null for no cap")
    return None if document[name] is None else number(document, name)


def _rope_bases(document: Mapping[str, Any], family: _Family) -> dict[str, float]:
    """Find the bases of the two kinds of layers, in the form of version 5 or as it was before."""
    given = document.get("rope_parameters")
    if given is None:
        local = number(document, "rope_local_base_freq") if family.two_bases else number(document, "rope_theta")
        return {_FULL: number(document, "rope_theta"), _WINDOW: local}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"rope_parameters is {given!r}, expected an object")
    parts = {kind: given.get(kind) if family.two_bases else given for kind in (_FULL, _WINDOW)}
    for kind, part in parts.items():
        if not isinstance(part, Mapping) or part.get("rope_type", "default") != "default":
            raise ConfigurationError(f"rope_parameters of {kind} is {part!r}, but only rope_type 'default' is known")
    return {kind: number(part, "rope_theta") for kind, part in parts.items()}  # type: ignore[arg-type]


def _windows(document: Mapping[str, Any], family: _Family, layers: int) -> tuple[int, ...]:
    kinds = document.get("layer_types")
    if kinds is None:
        pattern = document.get("sliding_window_pattern", family.window_pattern)
        if type(pattern) is not int or pattern < 1:
            raise ConfigurationError("has no layer_types, expected which layers have full or sliding attention")
        kinds = [_WINDOW if (layer + 1) % pattern else _FULL for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (_FULL, _WINDOW) for kind in kinds):
        raise ConfigurationError(f"layer_types is {str(kinds)[:80]}, expected {layers} times {_FULL} or {_WINDOW}")
    if _WINDOW not in kinds:
        return ()
    window = number(document, "sliding_window", int)
    return tuple(window if kind == _WINDOW else 0 for kind in kinds)


def config_to_hugging_face(config: PublishedDecoderConfig) -> dict[str, Any]:
    """Make a config.json that `config_from_hugging_face` reads as the same, and so does `transformers`.

    Raises:
      ConfigurationError: no model there has these parts.
    """
    rope = {"rope_type": "default", "rope_theta": config.rope_base}
    windows = config.windows or (0,) * config.layers
    for model_type, family in FAMILIES.items():
        document = {
            "architectures": [family.architecture],
            "model_type": model_type,
            **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
            "hidden_activation": _GELU,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": _whole(config.query_scale),
            "rms_norm_eps": config.epsilon,
            "rope_parameters": (
                {_FULL: rope, _WINDOW: rope | {"rope_theta": config.window_rope_base}} if family.two_bases else rope
            ),
            "layer_types": [_WINDOW if window else _FULL for window in windows],
            "sliding_window": max(windows) or config.max_length,
            "attn_logit_softcapping": config.attention_cap,
            "final_logit_softcapping": config.logit_cap,
        }
        if is_read_as(config, document, config_from_hugging_face):
            return document
    raise ConfigurationError("no model of transformers has just these parts; export it as safetensors")


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def names_in_hugging_face(config: PublishedDecoderConfig) -> Params:
    """Arrange the names of a model's parameters there as our parameters are arranged."""
    family = {**_NORMS}
    if not config.post_norms:
        del family["attention_post_norm"], family["mlp_post_norm"]
    if not config.query_key_norms:
        del family["query_norm"], family["key_norm"]
    return {
        "embedding": {"table": EMBEDDING},
        "blocks": [
            {ours: {"kernel": f"model.layers.{layer}.{theirs}.weight"} for ours, theirs in KERNELS.items()}
            | {ours: {"scale": f"model.layers.{layer}.{theirs}.weight"} for ours, theirs in family.items()}
            for layer in range(config.layers)
        ],
        "final_norm": {"scale": "model.norm.weight"},
    }
