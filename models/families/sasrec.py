"""SASRec: a causal Transformer over the items that a user has chosen, which predicts the next one.

Kang and McAuley 2018, "Self-attentive sequential recommendation": learned positions, blocks `x + g(LayerNorm(x))` of
attention without output projection and of feed-forward layers with ReLU and biases, a last layer norm, and scores of
items by their embeddings without bias. It is trained on the cross-entropy of the next item among all, not on
that of one sampled negative. Positions count from a sequence's beginning, since it is padded at its end. Dropout, all
of one rate, is of embeddings, attention weights and what each g gives.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedlm.models.base import Model, Params
from fedlm.models.families.transformer import TransformerSizes, cached_decoder, laid_out
from fedlm.models.layers.attention import attended, queries_keys_values, softmax_attention_weights
from fedlm.models.layers.basic import dense, embed, init_dense, init_embedding, init_layer_norm, layer_norm
from fedlm.models.layers.dropout import Drop, drop_nothing
from fedlm.models.layers.key_value_cache import KeyValueCache
from fedlm.models.layers.linear_head import linear_head_model


@dataclass(frozen=True, kw_only=True)
class SasRecConfig(TransformerSizes):
    """Sizes of a SASRec.

    Attributes:
      vocabulary_size: number of token ids: items and special tokens.
      max_length: most tokens of an input, which have a position each.
      tied: whether items are scored by their embeddings; else by a table of their own.
    """

    layers: int = 2
    heads: int = 1
    embedding: int = 64
    mlp: int = 64
    max_length: int = 50
    tied: bool = True


def sasrec(name: str, config: SasRecConfig) -> Model:
    """Make a SASRec; its `apply` raises ValueError for inputs longer than `config.max_length`."""

    def apply_blocks(
        params: Params,
        tokens: jax.Array,
        places: jax.Array,
        mask: jax.Array,
        *,
        cache: KeyValueCache | None,
        drop: Drop = drop_nothing,
    ) -> tuple[jax.Array, KeyValueCache | None]:
        x = embedded_items(params, tokens, places, drop)
        for layer, block in enumerate(params["blocks"]):
            y = layer_norm(block["attention_norm"], x)
            q_btnd, k_btnd, v_btnd = queries_keys_values(block, y, config.heads)
            if cache is not None:
                cache, k_btnd, v_btnd = cache.add(layer, k_btnd, v_btnd)
            weights = functools.partial(_dropped_weights, drop, 3 * layer + 1)
            x = x + drop(attended(q_btnd, k_btnd, v_btnd, mask=mask, attention_weights=weights), 3 * layer + 2)
            y = layer_norm(block["mlp_norm"], x)
            y = dense(block["mlp_output"], jax.nn.relu(dense(block["mlp_input"], y)))
            x = x + drop(y, 3 * layer + 3)
        return x, cache

    return recommender_of_blocks(name, config, apply_blocks, config.embedding // config.heads)


def recommender_of_blocks(
    name: str,
    config: SasRecConfig,
    apply_blocks: Callable[..., tuple[jax.Array, KeyValueCache | None]],
    cached_size: int,
    *,
    lay_out: Callable[[Params], Params] = laid_out,
) -> Model:
    """Make a recommender with the parameters of a SASRec of what its blocks compute.

    Args:
      name: of the model.
      config: its sizes.
      apply_blocks: see `fedlm.models.families.transformer.ApplyBlocks`; it takes a `Drop` too.
      cached_size: see `fedlm.models.families.transformer.decoder_of_blocks`, as for the next.
      lay_out: makes of a block's parameters those that `apply_blocks` takes where it decodes.
    """

    def init(rng: jax.Array) -> Params:
        rng_embedding, rng_positions, rng_blocks, rng_output = jax.random.split(rng, 4)
        params = {
            "embedding": init_embedding(rng_embedding, config.vocabulary_size, config.embedding),
            "positions": init_embedding(rng_positions, config.max_length, config.embedding),
            "blocks": [_init_block(rng_block, config) for rng_block in jax.random.split(rng_blocks, config.layers)],
            "final_norm": init_layer_norm(config.embedding),
        }
        if not config.tied:
            params["output"] = init_embedding(rng_output, config.vocabulary_size, config.embedding)
        return params

    def features(params: Params, tokens: jax.Array, drop: Drop = drop_nothing) -> jax.Array:
        length = tokens.shape[1]
        if length > config.max_length:
            # A position outside of the table would silently be another one.
            raise ValueError(
                f"inputs have {length} tokens, and this model has positions for {config.max_length}; cut them"
            )
        causal = jnp.tril(jnp.ones((length, length), dtype=bool))
        places = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        x, _ = apply_blocks(params, tokens, places, causal, cache=None, drop=drop)
        return layer_norm(params["final_norm"], x)

    def head(params: Params) -> tuple[Params, None]:
        return params["embedding" if config.tied else "output"], None

    return linear_head_model(
        name,
        config.vocabulary_size,
        init=init,
        features=features,
        head=head,
        special_tokens=config.special_tokens,
        decoder=cached_decoder(config, apply_blocks, cached_size, lay_out, max_length=config.max_length),
        dropped_features=features,
    )


def embedded_items(params: Params, tokens: jax.Array, places: jax.Array, drop: Drop) -> jax.Array:
    """Look items and their places up: what comes into the first block, [batch, time, width]."""
    x = embed(params["embedding"], tokens) + embed(params["positions"], places)
    # Rows of unit norm times sqrt(e) have entries of unit size.
    return drop(x * x.shape[-1] ** 0.5, 0)


def _dropped_weights(drop: Drop, place: int, scores: jax.Array, mask: jax.Array) -> jax.Array:
    return drop(softmax_attention_weights(scores, mask), place)


def _init_block(rng: jax.Array, config: SasRecConfig) -> Params:
    e, rngs = config.embedding, jax.random.split(rng, 5)
    return {
        "attention_norm": init_layer_norm(e),
        "query": init_dense(rngs[0], e, e),
        "key": init_dense(rngs[1], e, e),
        "value": init_dense(rngs[2], e, e),
        "mlp_norm": init_layer_norm(e),
        "mlp_input": init_dense(rngs[3], e, config.mlp, bias=True),
        "mlp_output": init_dense(rngs[4], config.mlp, e, bias=True),
    }
