"""Transformer and SI-Transformer decoder language models.

Pre-layer-norm blocks (Xiong et al. 2020) with ReLU feed-forward layers, no biases in the dense layers, fixed
sinusoidal positions and a tied output layer. Dimension letters: B batch, T time, N heads, D head size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import jax
import jax.numpy as jnp

from fedlm.models.base import Decoder, Model, Params
from fedlm.models.errors import ConfigurationError
from fedlm.models.layers.attention import ATTENTION_WEIGHTS, READ_TOGETHER, attend, queries_keys_values
from fedlm.models.layers.basic import (
    dense,
    embed,
    for_few_rows,
    init_dense,
    init_embedding,
    init_layer_norm,
    layer_norm,
    sinusoidal_positions,
)
from fedlm.models.layers.key_value_cache import KeyValueCache, empty_cache, last_read
from fedlm.models.layers.linear_head import linear_head_model
from fedlm.models.layers.output_norms import LAYER_NORM, OUTPUT_NORMS, OutputNorm
from fedlm.models.layers.parameter_uses import Parameter
from fedlm.models.special_tokens import OWN, SpecialTokens

MOST_LAYERS, LARGEST_SIZE = 1000, 2**31 - 1
"""Beyond these a configuration is taken for a damaged one, whose model no memory holds."""


def check_layers(layers: int) -> None:
    """Refuse, as a ConfigurationError, more layers than any model has."""
    if layers > MOST_LAYERS:
        raise ConfigurationError(f"layers is {layers}, but must be at most {MOST_LAYERS}")


@dataclass(frozen=True, kw_only=True)
class TransformerSizes:
    """Sizes that every Transformer has.

    Attributes:
      vocabulary_size: number of token ids.
      layers: number of blocks.
      heads: attention heads; divides `embedding`.
      embedding: model size.
      mlp: hidden size of the feed-forward layers.
      special_tokens: those of the vocabulary.
    """

    vocabulary_size: int = 4096
    layers: int
    heads: int
    embedding: int
    mlp: int
    special_tokens: SpecialTokens = OWN

    def __post_init__(self) -> None:
        check_layers(self.layers)
        if self.embedding % self.heads:
            raise ConfigurationError(
                f"embedding is {self.embedding}, but must be a multiple of heads, which is {self.heads}"
            )


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerSizes):
    """Sizes and parts of a Transformer decoder.

    Attributes:
      attention: one of `ATTENTION_WEIGHTS`, what makes weights of scores.
      final_norm: of what comes out of the last block.
    """

    attention: Literal["softmax", "scale_invariant"] = "softmax"
    final_norm: Literal["layer_norm", "rms_norm"] = "layer_norm"


def transformer(name: str, config: TransformerConfig) -> Model:
    """Make a Transformer decoder of its configuration's parts."""
    attention_weights = ATTENTION_WEIGHTS[config.attention]

    def apply_blocks(
        params: Params, tokens: jax.Array, places: jax.Array, mask: jax.Array, *, cache: KeyValueCache | None
    ) -> tuple[jax.Array, KeyValueCache | None]:
        x = embedded_tokens(params, tokens, places)
        for layer, block in enumerate(params["blocks"]):
            y = layer_norm(block["attention_norm"], x)
            q_btnd, k_btnd, v_btnd = queries_keys_values(block, y, config.heads)
            if cache is not None:
                cache, k_btnd, v_btnd = cache.add(layer, k_btnd, v_btnd)
            x = x + attend(block, q_btnd, k_btnd, v_btnd, mask=mask, attention_weights=attention_weights)
            x = x + _mlp(block, layer_norm(block["mlp_norm"], x))
        return x, cache

    return decoder_of_blocks(name, config, apply_blocks, config.embedding // config.heads)


class ApplyBlocks(Protocol):
    """Applies all blocks."""

    def __call__(
        self, params: Params, tokens: jax.Array, places: jax.Array, mask: jax.Array, *, cache: KeyValueCache | None
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Map int32 tokens [batch, time], their places and a mask of what they see to float [batch, time, width], what
        the last block gives, and the cache with what was read; without a cache the tokens see each other alone."""


def laid_out(block: Params) -> Params:
    """Lay a block out for decoding."""
    return for_few_rows(block, READ_TOGETHER)


def decoder_of_blocks(
    name: str,
    config: TransformerConfig,
    apply_blocks: ApplyBlocks,
    cached_size: int,
    *,
    lay_out: Callable[[Params], Params] = laid_out,
) -> Model:
    """Make a Transformer decoder of what its blocks compute.

    Args:
      name: of the model.
      config: its sizes.
      apply_blocks: see `ApplyBlocks`.
      cached_size: numbers that the cache keeps of each key, and of each value, of a head.
      lay_out: makes of a block's parameters those that `apply_blocks` takes where it decodes.
    """
    final_norm = OUTPUT_NORMS[config.final_norm]

    def init(rng: jax.Array) -> Params:
        rng_embedding, rng_blocks = jax.random.split(rng)
        return {
            "embedding": init_embedding(rng_embedding, config.vocabulary_size, config.embedding),
            "blocks": [_init_block(rng_block, config) for rng_block in jax.random.split(rng_blocks, config.layers)],
            **final_norm.parameters("final_norm", config.embedding),
            "output_bias": jnp.zeros(config.vocabulary_size),
        }

    def features(params: Params, tokens: jax.Array) -> jax.Array:
        causal = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), dtype=bool))
        x, _ = apply_blocks(params, tokens, jnp.arange(tokens.shape[1]), causal, cache=None)
        return final_norm.apply(params.get("final_norm"), x)

    def head(params: Params) -> tuple[Params, Parameter]:
        return params["embedding"], params["output_bias"]

    return linear_head_model(
        name,
        config.vocabulary_size,
        init=init,
        features=features,
        head=head,
        special_tokens=config.special_tokens,
        decoder=cached_decoder(config, apply_blocks, cached_size, lay_out, final_norm=final_norm),
    )


def cached_decoder(
    config: TransformerSizes,
    apply_blocks: ApplyBlocks,
    cached_size: int,
    lay_out: Callable[[Params], Params],
    *,
    max_length: int | None = None,
    final_norm: OutputNorm = LAYER_NORM,
) -> Decoder:
    """Make the decoder of blocks whose keys and values are kept, and after which comes a norm.

    Args:
      config: see `decoder_of_blocks`, as for the next three.
      apply_blocks: what the blocks compute.
      cached_size: numbers that the cache keeps of a key.
      lay_out: makes a block's parameters ready.
      max_length: most tokens of a row, where positions end; None where they do not.
      final_norm: of what comes out of the last block.
    """

    def begin(params: Params, rows: int, length: int) -> KeyValueCache:
        dtype = params["embedding"]["table"].dtype
        return empty_cache(
            layers=config.layers, batch=rows, columns=length, heads=config.heads, head_size=cached_size, dtype=dtype
        )

    def read(
        params: Params, cache: KeyValueCache, tokens: jax.Array, counts: jax.Array
    ) -> tuple[jax.Array, KeyValueCache | None]:
        cache, places = cache.reading(tokens.shape[1], counts)
        # Padding may have places beyond the last position.
        positions = places if max_length is None else jnp.minimum(places, max_length - 1)
        x, read_cache = apply_blocks(params, tokens, positions, cache.visible(places)[:, None], cache=cache)
        return final_norm.apply(params.get("final_norm"), last_read(x, counts)), read_cache

    def prepare(params: Params) -> Params:
        return params | {"blocks": [lay_out(block) for block in params["blocks"]]}

    return Decoder(begin, read, prepare, max_length)


def embedded_tokens(params: Params, tokens: jax.Array, places: jax.Array) -> jax.Array:
    """Look tokens up and add the encodings of their places: what comes into the first block, [batch, time, width]."""
    width = params["embedding"]["table"].shape[1]
    # Rows of unit norm times sqrt(e) have entries of the positions' size.
    x = embed(params["embedding"], tokens) * width**0.5
    return x + sinusoidal_positions(places, width).astype(x.dtype)


def _init_block(rng: jax.Array, config: TransformerConfig) -> Params:
    e = config.embedding
    rngs = jax.random.split(rng, 6)
    return {
        "attention_norm": init_layer_norm(e),
        "query": init_dense(rngs[0], e, e),
        "key": init_dense(rngs[1], e, e),
        "value": init_dense(rngs[2], e, e),
        "attention_output": init_dense(rngs[3], e, e),
        "mlp_norm": init_layer_norm(e),
        "mlp_input": init_dense(rngs[4], e, config.mlp),
        "mlp_output": init_dense(rngs[5], config.mlp, e),
    }


def _mlp(block: Params, x: jax.Array) -> jax.Array:
    return dense(block["mlp_output"], jax.nn.relu(dense(block["mlp_input"], x)))
