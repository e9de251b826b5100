"""Configurations and parameters of Llama, Mistral and Qwen decoders as Hugging Face's `transformers` 5.23 has them.

What decides of a model's numbers must be in its config.json, as for `fedlm.models.hugging_face.gemma`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedlm.models.base import Params
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.published_decoder_config import PublishedDecoderConfig
from fedlm.models.families.transformer import check_layers
from fedlm.models.hugging_face.gemma import (
    EMBEDDING,
    HEAD,
    KERNELS,
    LAYER_KINDS,
    SIZES,
    check_fixed,
    is_read_as,
    number,
)


class _Family(NamedTuple):
    """What the models of a type have."""

    architecture: str
    biases: bool = False  # of queries, keys and values
    query_key_norms: bool = False
    windows: bool = False  # whether all layers may have one
    old_rope_base: float | None = None  # of files from before there was a choice


FAMILIES = {
    "llama": _Family("LlamaForCausalLM", old_rope_base=10_000.0),
    "mistral": _Family("MistralForCausalLM", windows=True),
    "qwen2": _Family("Qwen2ForCausalLM", biases=True),
    "qwen3": _Family("Qwen3ForCausalLM", query_key_norms=True),
}
"""By the `model_type` of config.json."""

_MUST_BE: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
}
_NORMS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}


def config_from_hugging_face(document: Mapping[str, Any]) -> PublishedDecoderConfig:
    """Read a config.json, whose `model_type` is one of `FAMILIES`.

    Raises:
      ConfigurationError: a field is missing or of no use, or says what our model has not got.
    """
    family = FAMILIES[document["model_type"]]
    check_fixed(document, _MUST_BE)
    tied = document.get("tie_word_embeddings")
    if not isinstance(tied, bool):
        raise ConfigurationError(f"tie_word_embeddings is {tied!r}, expected true or false")
    heads = number(document, "num_attention_heads", int)
    # Older files leave out what follows from the others.
    whole = {"num_key_value_heads": heads, "head_dim": number(document, "hidden_size", int) // heads}
    found = {**whole, **{name: value for name, value in document.items() if value is not None}}
    sizes = {ours: number(found, theirs, int) for ours, theirs in SIZES.items()}
    check_layers(sizes["layers"])
    full, _ = LAYER_KINDS
    kinds = document.get("layer_types")
    if kinds is not None and kinds != [full] * sizes["layers"]:
        raise ConfigurationError(
            f"layer_types is {str(kinds)[:80]}, expected {full!r} for each of {sizes['layers']} layers"
        )
    window = document.get("sliding_window") if family.windows else None
    return PublishedDecoderConfig(
        **sizes,
        query_scale=sizes["head_size"],
        epsilon=number(document, "rms_norm_eps"),
        rope_base=_rope_base(document, family),
        windows=() if window is None else (number(document, "sliding_window", int),) * sizes["layers"],
        query_key_norms=family.query_key_norms,
        norm="rms_norm",
        positions="rotary",
        activation="silu",
        gated=True,
        biases="query_key_value" if family.biases else "none",
        scaled_embedding=False,
        tied=tied,
    )


def _rope_base(document: Mapping[str, Any], family: _Family) -> float:
    """Find the base, in the form of version 5 or as it was before."""
    given = document.get("rope_parameters")
    if given is None and document.get("rope_theta") is None and family.old_rope_base is not None:
        return family.old_rope_base
    given = document if given is None else given
    if not isinstance(given, Mapping) or given.get("rope_type", "default") != "default":
        raise ConfigurationError(f"rope_parameters is {given!r}, but only rope_type 'default' is known")
    return number(given, "rope_theta")


def config_to_hugging_face(config: PublishedDecoderConfig) -> dict[str, Any]:
    """Make a config.json that `config_from_hugging_face` reads as the same, and so does `transformers`.

    Raises:
      ConfigurationError: no model there has these parts.
    """
    for model_type, family in FAMILIES.items():
        document = {
            "architectures": [family.architecture],
            "model_type": model_type,
            **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "rms_norm_eps": config.epsilon,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
            "sliding_window": config.windows[0] if config.windows else None,
            "tie_word_embeddings": config.tied,
        }
        if is_read_as(config, document, config_from_hugging_face):
            return document
    raise ConfigurationError("no model of transformers has just these parts; export it as safetensors")


def unpack(state: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what old files have of rotary positions, which follow from the configuration."""
    return {name: tensor for name, tensor in state.items() if not name.endswith(".rotary_emb.inv_freq")}


def names_in_hugging_face(config: PublishedDecoderConfig) -> Params:
    """Arrange the names of a model's parameters there as our parameters are arranged."""
    biased = ("query", "key", "value") if config.biases == "query_key_value" else ()
    norms = dict(_NORMS)
    if not config.query_key_norms:
        del norms["query_norm"], norms["key_norm"]

    def block(prefix: str) -> Params:
        named: Params = {ours: {"kernel": f"{prefix}.{theirs}.weight"} for ours, theirs in KERNELS.items()}
        for ours in biased:
            named[ours]["bias"] = f"{prefix}.{KERNELS[ours]}.bias"
        return named | {ours: {"scale": f"{prefix}.{theirs}.weight"} for ours, theirs in norms.items()}

    names = {
        "embedding": {"table": EMBEDDING},
        "blocks": [block(f"model.layers.{layer}") for layer in range(config.layers)],
        "final_norm": {"scale": "model.norm.weight"},
    }
    return names if config.tied else names | {"output": {"table": HEAD}}
