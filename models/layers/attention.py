"""Attention of several heads over values by scaled products of queries and keys (Vaswani et al. 2017).

Dimension letters: B batch, T time, N heads, D head size.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedlm.models.base import Params
from fedlm.models.layers.basic import dense, dense_together
from fedlm.models.layers.scale_invariant import si_attention_weights

AttentionWeights = Callable[[jax.Array, jax.Array], jax.Array]
"""Maps (scores [..., queries, keys], mask) to attention weights of the same shape."""

READ_TOGETHER = ("query", "key", "value")
"""Layers of a block that read the same, see `fedlm.models.layers.basic.for_few_rows`."""


def softmax_attention_weights(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Masked softmax over the last axis, computed in float32.

    Args:
      scores: float [..., queries, keys].
      mask: bool, broadcastable to scores; every query must see at least one key.

    Returns:
      The shape and dtype of scores; rows sum to 1.
    """
    wide = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    return jax.nn.softmax(jnp.where(mask, wide, -jnp.inf), axis=-1).astype(scores.dtype)


ATTENTION_WEIGHTS: dict[str, AttentionWeights] = {
    "softmax": softmax_attention_weights,
    "scale_invariant": si_attention_weights,
}
"""By the name that a configuration has; the second is `N(relu(QK^T))` (Li et al. 2022)."""


def attention(
    block: Params, x: jax.Array, heads: int, *, mask: jax.Array, attention_weights: AttentionWeights
) -> jax.Array:
    """Attend from every position to those that the mask lets it see (Vaswani et al. 2017, section 3.2).

    Args:
      block: dense layers `query`, `key`, `value` and `attention_output`, with or without biases.
      x: float [batch, time, width].
      heads: attention heads; divides the width.
      mask: bool, broadcastable to [batch, heads, queries, keys]; True where a query sees a key.
      attention_weights: what makes weights of scores.

    Returns:
      The shape and dtype of x.
    """
    return attend(block, *queries_keys_values(block, x, heads), mask=mask, attention_weights=attention_weights)


def queries_keys_values(block: Params, x: jax.Array, heads: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Make the scaled queries, the keys and the values of `attention`, float [batch, time, heads, width / heads]."""
    *batch_time, width = x.shape

    def split_heads(y: jax.Array) -> jax.Array:
        return y.reshape(*batch_time, heads, width // heads)

    q_btnd, k_btnd, v_btnd = map(split_heads, dense_together(block, dict.fromkeys(READ_TOGETHER, width), x))
    return q_btnd * (width // heads) ** -0.5, k_btnd, v_btnd


def attend(
    block: Params,
    q_btnd: jax.Array,
    k_btnd: jax.Array,
    v_btnd: jax.Array,
    *,
    mask: jax.Array,
    attention_weights: AttentionWeights,
) -> jax.Array:
    """Let queries see keys as the mask says, see `attention`; there may be more keys than queries."""
    return dense(
        block["attention_output"], attended(q_btnd, k_btnd, v_btnd, mask=mask, attention_weights=attention_weights)
    )


def attended(
    q_btnd: jax.Array, k_btnd: jax.Array, v_btnd: jax.Array, *, mask: jax.Array, attention_weights: AttentionWeights
) -> jax.Array:
    """Mix the values that queries see, float [batch, queries, width]: what `attend` does, but for the last layer."""
    scores_bnqk = jnp.einsum("bqnd,bknd->bnqk", q_btnd, k_btnd)
    weights_bnqk = attention_weights(scores_bnqk, mask)
    y_btnd = jnp.einsum("bnqk,bknd->bqnd", weights_bnqk, v_btnd)
    return y_btnd.reshape(*y_btnd.shape[:2], -1)
