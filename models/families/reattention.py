"""Transformers with re-attention: attention corrected for the noise that private training leaves in its keys.

Noise in a key makes the exponential of its score larger on average, and it is largest in the keys of rare tokens, whose
embeddings learn the least and get as much noise as all others. So tokens that nobody knows much of draw attention.
DPFormer (arXiv 2305.17633, section 5; arXiv 2405.18194) follows the variance of the noise through the layers and
divides each weight by its expected inflation: with q the query of a head, d its size and s_i^2 the variance of key i,
the score `<q, k_i> / sqrt(d)` loses `|q|^2 s_i^2 / (2 d)` (equation 5.2).

What the paper leaves open, and what is done here:

- The correction is on scores, within the softmax, which normalises what is left.
- Which part of the noise is where is computed by `moments`, whose choices are listed there. Residual sums
  add variances. Noise in queries is not corrected for: it shifts all scores of a row alike but for its product with
  keys.
- No gradient passes through the variances, and so none to parameters by way of their errors. It does pass through
  `|q|^2`: `exp(<q, K> - |q|^2 s^2 / 2)` is an unbiased estimate of `exp(<q, k>)`, and its gradient by q one of that's.
- What a score loses is at most `most_correction`: e^-16 of a weight is none.
- A token that occurs nowhere has no effective error; relevances are positive, and whoever makes them floors them.
- The model that is evaluated is the one that was trained, correction and all.
- Scale-invariant attention, `N(relu(scores))`, divides by the inflation of relu, see
  `moments.without_relu_inflation`. Its weights still do not feel the scale of scores and their noise.

`dpformer` is a SASRec with it, since the paper's task is to recommend; positions are learned there, and are taken to be
relevant to every unit.

The errors follow from the plan of the run, not from its parameters. They are constants of the model, and without them,
or without noise, it is the Transformer of the same sizes, with the same parameters.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.models.base import Model, Params
from fedlm.models.errors import ConfigurationError, setting
from fedlm.models.families import moments
from fedlm.models.families.parameter_errors import ParameterErrors
from fedlm.models.families.sasrec import SasRecConfig, embedded_items, recommender_of_blocks, sasrec
from fedlm.models.families.transformer import (
    TransformerConfig,
    decoder_of_blocks,
    embedded_tokens,
    laid_out,
    transformer,
)
from fedlm.models.layers.attention import queries_keys_values, softmax_attention_weights
from fedlm.models.layers.basic import dense, layer_norm
from fedlm.models.layers.dropout import Drop, drop_nothing
from fedlm.models.layers.key_value_cache import KeyValueCache
from fedlm.models.layers.lora import ADAPTER
from fedlm.models.layers.parameter_uses import constant
from fedlm.models.layers.scale_invariant import si_attention_weights

CorrectedWeights = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Maps (scores [..., queries, keys], their variance, mask) to attention weights of the same shape."""


@dataclass(frozen=True, kw_only=True)
class ReattentionConfig(TransformerConfig):
    """Sizes and constants of a Transformer with re-attention.

    Attributes:
      parameter_errors: of the parameters that it is trained to; None where nothing is known yet, for no correction.
      most_correction: what a score loses at most.
    """

    parameter_errors: ParameterErrors | None = None
    most_correction: float = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_errors(self.parameter_errors, self.vocabulary_size)


@dataclass(frozen=True, kw_only=True)
class DpFormerConfig(SasRecConfig):
    """Sizes and constants of a DPFormer.

    Attributes:
      parameter_errors: see `ReattentionConfig`, as for the next.
      most_correction: what a score loses at most.
    """

    parameter_errors: ParameterErrors | None = None
    most_correction: float = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_errors(self.parameter_errors, self.vocabulary_size)


def _check_errors(errors: ParameterErrors | None, vocabulary_size: int) -> None:
    if errors is not None and len(errors.relevance) != vocabulary_size:
        raise ConfigurationError(
            f"the relevance of {len(errors.relevance)} tokens is given, but the vocabulary has {vocabulary_size}"
        )


def reattention_transformer(name: str, config: ReattentionConfig) -> Model:
    """Make a Transformer decoder whose attention is corrected for noise."""
    errors = config.parameter_errors
    if errors is None or not errors.variance:
        return transformer(name, config)
    softmax = config.attention == "softmax"
    corrected = _corrected_softmax(config.most_correction) if softmax else _corrected_scale_invariant
    token_variance, apply = (
        errors.token_variance(),
        functools.partial(
            reattention_block, heads=config.heads, weight_variance=errors.variance, attention_weights=corrected
        ),
    )

    def apply_blocks(
        params: Params, tokens: jax.Array, places: jax.Array, mask: jax.Array, *, cache: KeyValueCache | None
    ) -> tuple[jax.Array, KeyValueCache | None]:
        x = embedded_tokens(params, tokens, places)
        # Embeddings are multiplied by the root of the width, and positions are known.
        row = NoisyRows(x, config.embedding * jnp.asarray(token_variance)[tokens])
        return _through_blocks(params, row, apply, mask=mask, cache=cache)

    return decoder_of_blocks(name, config, apply_blocks, config.embedding // config.heads + 1, lay_out=_laid_out)


def _corrected_softmax(most_correction: float) -> CorrectedWeights:
    def weights(scores: jax.Array, variance: jax.Array, mask: jax.Array) -> jax.Array:
        loss = jnp.minimum(moments.exponential_inflation(variance), most_correction)
        return softmax_attention_weights(scores - loss, mask)

    return weights


def _corrected_scale_invariant(scores: jax.Array, variance: jax.Array, mask: jax.Array) -> jax.Array:
    return si_attention_weights(moments.without_relu_inflation(scores.astype(variance.dtype), variance), mask)


def dpformer(name: str, config: DpFormerConfig) -> Model:
    """Make a SASRec with attention that is corrected for noise (DPFormer); see `sasrec`."""
    errors = config.parameter_errors
    if errors is None or not errors.variance:
        return sasrec(name, config)
    token_variance, corrected = errors.token_variance(), _corrected_softmax(config.most_correction)
    apply = functools.partial(
        reattention_block, heads=config.heads, weight_variance=errors.variance, attention_weights=corrected
    )

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
        row = NoisyRows(x, config.embedding * (jnp.asarray(token_variance)[tokens] + errors.variance))
        return _through_blocks(params, row, apply, mask=mask, cache=cache, drop=drop)

    return recommender_of_blocks(name, config, apply_blocks, config.embedding // config.heads + 1, lay_out=_laid_out)


def _laid_out(block: Params) -> Params:
    return laid_out(block) | {_GAINS: noise_gains(block)}


_GAINS = "noise_gains"
"""Under which a block that is laid out for decoding has its `noise_gains`."""


def noise_gains(block: Params) -> dict[str, jax.Array]:
    """Compute how much noise a block's dense layers let through, by name, each float32 [2]: the sum of the squares of
    the kernel's entries by outputs, and how many biases an output has. No gradient passes through it."""
    gains = {}
    for name, layer in block.items():
        if "kernel" not in layer:
            continue
        if ADAPTER in layer:
            raise ConfigurationError(
                "re-attention is for models that are trained whole: how noise in low-rank adapters spreads is not "
                f"known to it; leave {setting('lora_rank')} out, or take the model without re-attention"
            )
        kernel = _known(constant(layer["kernel"]))
        gains[name] = jnp.stack([jnp.sum(jnp.square(kernel)) / kernel.shape[1], float("bias" in layer)])
    return gains


class NoisyRows(NamedTuple):
    """Rows with the variance of their noise.

    Attributes:
      x: float [batch, time, width], what was computed, which stands for its mean.
      variance: float32 [batch, time], of each coordinate; no gradient passes through it.
    """

    x: jax.Array
    variance: jax.Array


def _through_blocks(
    params: Params, rows: NoisyRows, apply: Callable[..., Any], *, cache: KeyValueCache | None, **context: Any
) -> tuple[jax.Array, KeyValueCache | None]:
    for layer, block in enumerate(params["blocks"]):
        rows, cache = apply(block, rows, cache=cache, layer=layer, **context)
    return rows.x, cache


def reattention_block(
    block: Params,
    rows: NoisyRows,
    *,
    heads: int,
    mask: jax.Array,
    weight_variance: float,
    attention_weights: CorrectedWeights,
    cache: KeyValueCache | None = None,
    layer: int = 0,
    drop: Drop = drop_nothing,
) -> tuple[NoisyRows, KeyValueCache | None]:
    """Apply a pre-layer-norm block with corrected attention and a ReLU feed-forward layer.

    Args:
      block: of `transformer`, or of `sasrec`, which has no `attention_output`.
      rows: what comes in.
      heads: attention heads.
      mask: see `transformer.attention`.
      weight_variance: of the error of each of the block's parameters.
      attention_weights: the corrected ones.
      cache: of keys and values with their variances, which stand behind each head's numbers; None for none.
      layer: the block's number.
      drop: what is dropped of attention weights, and of what attention and feed-forward layer add, as SASRec does.

    Returns:
      What comes out, and the cache with what was read.
    """
    gains = block[_GAINS] if _GAINS in block else noise_gains(block)
    y = _normalised(block["attention_norm"], rows, weight_variance)
    q_btnd, k_btnd, v_btnd = queries_keys_values(block, y.x, heads)
    k_btnd = _with_variance(k_btnd, _after_dense(gains["key"], y, weight_variance))
    v_btnd = _with_variance(v_btnd, _after_dense(gains["value"], y, weight_variance))
    if cache is not None:
        cache, k_btnd, v_btnd = cache.add(layer, k_btnd, v_btnd)
    (k_btnd, k_variance), (v_btnd, v_variance) = _without_variance(k_btnd), _without_variance(v_btnd)
    scores_bnqk = jnp.einsum("bqnd,bknd->bnqk", q_btnd, k_btnd)
    length_bnq = jnp.sum(jnp.square(_wide(q_btnd)), axis=-1).swapaxes(1, 2)
    weights_bnqk = attention_weights(scores_bnqk, length_bnq[..., None] * k_variance[:, None, None, :], mask)
    weights_bnqk = drop(weights_bnqk.astype(v_btnd.dtype), 3 * layer + 1)
    attended = jnp.einsum("bnqk,bknd->bqnd", weights_bnqk, v_btnd)
    # Each head has a part of the coordinates.
    of_heads = moments.weighted_sum_variance(_known(weights_bnqk), v_variance[:, None, :])
    sums = NoisyRows(attended.reshape(*attended.shape[:2], -1), jnp.mean(of_heads, axis=1))
    if "attention_output" in gains:
        variance = _after_dense(gains["attention_output"], sums, weight_variance)
        sums = NoisyRows(dense(block["attention_output"], sums.x), variance)
    rows = NoisyRows(rows.x + drop(sums.x, 3 * layer + 2), rows.variance + sums.variance)

    y = _normalised(block["mlp_norm"], rows, weight_variance)
    inner = dense(block["mlp_input"], y.x)
    before = _after_dense(gains["mlp_input"], y, weight_variance)
    _, after = moments.relu_moments(_known(inner), before[..., None])
    hidden = NoisyRows(jax.nn.relu(inner), jnp.mean(after, axis=-1))
    variance = rows.variance + _after_dense(gains["mlp_output"], hidden, weight_variance)
    return NoisyRows(rows.x + drop(dense(block["mlp_output"], hidden.x), 3 * layer + 3), variance), cache


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _known(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(_wide(x))


def _normalised(params: Params, rows: NoisyRows, weight_variance: float) -> NoisyRows:
    scale = _known(constant(params["scale"]))
    variance = moments.layer_norm_variance(_known(rows.x), rows.variance, scale, weight_variance)
    return NoisyRows(layer_norm(params, rows.x), variance)


def _after_dense(gain: jax.Array, rows: NoisyRows, weight_variance: float) -> jax.Array:
    variance = moments.linear_variance(_known(rows.x), rows.variance, gain[0], weight_variance)
    return variance + gain[1] * weight_variance


def _with_variance(x_btnd: jax.Array, variance_bt: jax.Array) -> jax.Array:
    last = jnp.broadcast_to(variance_bt[..., None, None].astype(x_btnd.dtype), (*x_btnd.shape[:-1], 1))
    return jnp.concatenate([x_btnd, last], axis=-1)


def _without_variance(x_btnd: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x_btnd[..., :-1], _known(x_btnd[..., 0, -1])
