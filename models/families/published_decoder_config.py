"""Sizes and parts of decoders as others publish them."""

from dataclasses import dataclass
from typing import Literal

from fedlm.models.errors import ConfigurationError
from fedlm.models.families.transformer import check_layers
from fedlm.models.special_tokens import OWN, SpecialTokens


@dataclass(frozen=True, kw_only=True)
class PublishedDecoderConfig:
    """Sizes and parts of a decoder; what few have is left out by default.

    Attributes:
      vocabulary_size: number of token ids.
      layers: number of blocks.
      heads: query heads.
      key_value_heads: key and value heads, each for `heads / key_value_heads` query heads.
      head_size: width of a head, even; `heads * head_size` need not be `embedding`.
      embedding: model size.
      mlp: hidden size of the feed-forward layers.
      max_length: most tokens of an input.
      query_scale: s, by whose root queries are divided.
      epsilon: added to mean squares, or to variances.
      rope_base: base of the rotary positions' wavelengths.
      windows: for each layer how many positions back a query sees, its own among them, 0 for all; empty where all
        layers see all.
      window_rope_base: base in the layers with a window; None for that of the others.
      attention_cap: c, where attention scores are `c tanh(score / c)`; None for no cap.
      logit_cap: the same of logits.
      post_norms: whether what attention and feed-forward layers give is normalised too.
      query_key_norms: whether each head's queries and keys are normalised.
      norm: `rms_norm_1` multiplies by 1 + scale, `rms_norm` by scale.
      positions: rotary (Su et al. 2021), or a learned vector each.
      activation: of the feed-forward layers; `gelu` is its approximation by tanh.
      gated: whether the activation multiplies another dense layer's output.
      biases: which dense layers have one.
      scaled_embedding: whether embeddings are multiplied by the root of their width.
      tied: whether tokens are scored by their embeddings; else by a table of their own.
      never_predicted: ids that have no logit, since the published model has no such token.
      special_tokens: those of the vocabulary.
    """

    vocabulary_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    embedding: int
    mlp: int
    max_length: int
    query_scale: float
    epsilon: float
    rope_base: float
    windows: tuple[int, ...] = ()
    window_rope_base: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    post_norms: bool = False
    query_key_norms: bool = False
    norm: Literal["rms_norm_1", "rms_norm", "layer_norm"]
    positions: Literal["rotary", "learned"]
    activation: Literal["gelu", "silu"]
    gated: bool
    biases: Literal["none", "query_key_value", "all"]
    scaled_embedding: bool
    tied: bool
    never_predicted: tuple[int, ...] = ()
    special_tokens: SpecialTokens = OWN

    def __post_init__(self) -> None:
        check_layers(self.layers)
        if self.heads % self.key_value_heads:
            raise ConfigurationError(
                f"heads is {self.heads}, but must be a multiple of key_value_heads, {self.key_value_heads}"
            )
        if self.head_size % 2:
            raise ConfigurationError(f"head_size is {self.head_size}, but must be even")
        if self.windows and len(self.windows) != self.layers:
            raise ConfigurationError(f"windows has {len(self.windows)} layers, but there are {self.layers}")


def vault_gemma(
    vocabulary_size: int, *, layers: int, heads: int, head_size: int, embedding: int, mlp: int, max_length: int = 1024
) -> PublishedDecoderConfig:
    """Configure a model of VaultGemma's parts: every head has its own keys and values, every layer sees all, and there
    are neither caps nor norms but those before layers."""
    return PublishedDecoderConfig(
        vocabulary_size=vocabulary_size,
        layers=layers,
        heads=heads,
        key_value_heads=heads,
        head_size=head_size,
        embedding=embedding,
        mlp=mlp,
        max_length=max_length,
        query_scale=head_size,
        epsilon=1e-6,
        rope_base=10_000.0,
        norm="rms_norm_1",
        positions="rotary",
        activation="gelu",
        gated=True,
        biases="none",
        scaled_embedding=True,
        tied=True,
    )
