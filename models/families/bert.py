"""BERT encoders (Devlin et al. 2019), trained to predict masked tokens.

Post-layer-norm blocks with biases, exact GELU, learned positions and an output layer tied with the token embedding; no
dropout, no pooler, no next-sentence prediction. With a vocabulary in their order, logits are those of Hugging Face's
`BertForMaskedLM` (`models/hugging_face/bert.py` maps the parameters).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fedlm.models.base import Model, Params
from fedlm.models.families.masked_language import mask_id, masked_language_model
from fedlm.models.families.transformer import TransformerSizes
from fedlm.models.layers.attention import attention, softmax_attention_weights
from fedlm.models.layers.basic import dense, embed, init_layer_norm, layer_norm, logits_from_table
from fedlm.models.special_tokens import PAD_ID

_DEVIATION = 0.02
_EPSILON = 1e-12


@dataclass(frozen=True, kw_only=True)
class BertConfig(TransformerSizes):
    """Sizes of a BERT encoder.

    Attributes:
      vocabulary_size: number of token ids of the data; the model has one more, that of the mask.
      max_length: most tokens of an input.
      token_types: rows of the table of token types; all our tokens are of type 0.
    """

    # With the mask 30,522, as many as the published models have.
    vocabulary_size: int = 30_521
    max_length: int = 512
    token_types: int = 2


def bert(name: str, config: BertConfig) -> Model:
    """Make a BERT encoder with its masked-language head; its `apply` raises ValueError for inputs longer than
    `config.max_length`.
    """

    def init(rng: jax.Array) -> Params:
        rngs, e = jax.random.split(rng, 5), config.embedding
        rows = mask_id(config.vocabulary_size) + 1
        return {
            "embedding": {"table": _draw(rngs[0], rows, e)},
            "positions": {"table": _draw(rngs[1], config.max_length, e)},
            "token_types": {"table": _draw(rngs[2], config.token_types, e)},
            "embedding_norm": init_layer_norm(e),
            "blocks": [_init_block(rng_block, config) for rng_block in jax.random.split(rngs[3], config.layers)],
            "head": _init_dense(rngs[4], e, e),
            "head_norm": init_layer_norm(e),
            "output_bias": jnp.zeros(rows),
        }

    def apply(params: Params, tokens: jax.Array) -> jax.Array:
        x = _embedded(params, tokens, config.max_length)
        mask = _visible(tokens)[:, None, None, :]
        for block in params["blocks"]:
            y = attention(block, x, config.heads, mask=mask, attention_weights=softmax_attention_weights)
            x = layer_norm(block["attention_norm"], x + y, _EPSILON)
            y = dense(block["mlp_output"], _gelu(dense(block["mlp_input"], x)))
            x = layer_norm(block["mlp_norm"], x + y, _EPSILON)
        x = layer_norm(params["head_norm"], _gelu(dense(params["head"], x)), _EPSILON)
        return logits_from_table(params["embedding"], params["output_bias"], x)

    return masked_language_model(name, config.vocabulary_size, init, apply, special_tokens=config.special_tokens)


def _draw(rng: jax.Array, *shape: int) -> jax.Array:
    return _DEVIATION * jax.random.truncated_normal(rng, -2.0, 2.0, shape)


def _init_dense(rng: jax.Array, inputs: int, outputs: int) -> Params:
    return {"kernel": _draw(rng, inputs, outputs), "bias": jnp.zeros(outputs)}


def _init_block(rng: jax.Array, config: BertConfig) -> Params:
    e, rngs = config.embedding, jax.random.split(rng, 6)
    return {
        "query": _init_dense(rngs[0], e, e),
        "key": _init_dense(rngs[1], e, e),
        "value": _init_dense(rngs[2], e, e),
        "attention_output": _init_dense(rngs[3], e, e),
        "attention_norm": init_layer_norm(e),
        "mlp_input": _init_dense(rngs[4], e, config.mlp),
        "mlp_output": _init_dense(rngs[5], config.mlp, e),
        "mlp_norm": init_layer_norm(e),
    }


def _embedded(params: Params, tokens: jax.Array, max_length: int) -> jax.Array:
    length = tokens.shape[1]
    if length > max_length:
        # A position outside of the table would silently be another one.
        raise ValueError(f"inputs have {length} tokens, and this model has positions for {max_length}; cut them")
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    x = embed(params["embedding"], tokens) + embed(params["positions"], positions)
    x = x + embed(params["token_types"], jnp.zeros_like(tokens))
    return layer_norm(params["embedding_norm"], x, _EPSILON)


def _visible(tokens: jax.Array) -> jax.Array:
    """Mark the tokens that are attended to: all but PAD, or all of a row that has nothing else."""
    real = tokens != PAD_ID
    return real | ~jnp.any(real, axis=-1, keepdims=True)


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)
