"""Decoders as others publish them: GPT-2, Llama, Mistral, Qwen 2 and 3, VaultGemma, Gemma 2 and 3 (of text).

Pre-norm blocks of attention with grouped key and value heads (Ainslie et al. 2023) and of a feed-forward layer, which
may be gated (Shazeer 2020). What else a model has, its configuration says (Radford et al. 2019; Touvron et al. 2023;
Jiang et al. 2023; Qwen Team 2024 and 2025; Gemma Team 2024 and 2025). Logits are those of Hugging Face's
`transformers`; the modules `hugging_face_gemma`, `hugging_face_llama` and `hugging_face_gpt2` map configurations and
parameters. Dimension letters: B batch, T time, K key and value heads, G query heads of each, D head size.
"""

import jax
import jax.numpy as jnp

from fedlm.models.base import Decoder, Model, Params
from fedlm.models.families.published_decoder_config import PublishedDecoderConfig
from fedlm.models.layers.attention import softmax_attention_weights
from fedlm.models.layers.basic import (
    dense,
    dense_together,
    embed,
    for_few_rows,
    init_gain,
    init_layer_norm,
    layer_norm,
    rms_norm,
    rotary_positions,
    rotate,
    soft_cap,
)
from fedlm.models.layers.key_value_cache import KeyValueCache, empty_cache, last_read
from fedlm.models.layers.linear_head import linear_head_model

_DEVIATION = 0.02
_NEVER = -1e4
"""Logit of a token that is not predicted."""
_ACTIVATIONS = {"gelu": jax.nn.gelu, "silu": jax.nn.silu}
_READ_TOGETHER = ("query", "key", "value"), ("mlp_gate", "mlp_input")


def published_decoder(name: str, config: PublishedDecoderConfig) -> Model:
    """Make a decoder; its `apply` raises ValueError for inputs longer than `config.max_length`."""
    windows = config.windows or (0,) * config.layers

    def init(rng: jax.Array) -> Params:
        rng_embedding, rng_blocks = jax.random.split(rng)
        params = {
            "embedding": {"table": _draw(rng_embedding, config.vocabulary_size, config.embedding)},
            "blocks": [_init_block(rng_block, config) for rng_block in jax.random.split(rng_blocks, config.layers)],
            "final_norm": _init_norm(config, config.embedding),
        }
        rng_positions, rng_output = jax.random.split(jax.random.fold_in(rng, 1))
        if config.positions == "learned":
            params["positions"] = {"table": _draw(rng_positions, config.max_length, config.embedding)}
        if not config.tied:
            params["output"] = {"table": _draw(rng_output, config.vocabulary_size, config.embedding)}
        return params

    def features(params: Params, tokens: jax.Array) -> jax.Array:
        length = tokens.shape[1]
        if length > config.max_length:
            raise ValueError(
                f"inputs have {length} tokens, and this model is for at most {config.max_length}; cut them"
            )
        masks = {window: _visible(length, window) for window in set(windows)}
        x, _ = apply_blocks(params, tokens, jnp.arange(length), masks, cache=None)
        return _norm(config, params["final_norm"], x)

    def apply_blocks(
        params: Params,
        tokens: jax.Array,
        places: jax.Array,
        masks: dict[int, jax.Array],
        *,
        cache: KeyValueCache | None,
    ) -> tuple[jax.Array, KeyValueCache | None]:
        x = embed(params["embedding"], tokens)
        if config.scaled_embedding:
            # Rounded to the weights' type first, as it was when the published weights were trained.
            x = x * jnp.asarray(config.embedding**0.5, x.dtype)
        positions = {}
        if config.positions == "rotary":
            positions = {window: rotary_positions(places, config.head_size, _base(config, window)) for window in masks}
        else:
            # Padding may have places beyond the last position. Every example has a use of its own.
            x = x + embed(
                params["positions"], jnp.broadcast_to(jnp.minimum(places, config.max_length - 1), tokens.shape)
            )
        for layer, window in enumerate(windows):
            x, cache = _apply_block(
                params, layer, x, mask=masks[window], positions=positions.get(window), config=config, cache=cache
            )
        return x, cache

    def begin(params: Params, rows: int, length: int) -> KeyValueCache:
        dtype = params["embedding"]["table"].dtype
        return empty_cache(
            layers=config.layers,
            batch=rows,
            columns=length,
            heads=config.key_value_heads,
            head_size=config.head_size,
            dtype=dtype,
        )

    def read(
        params: Params, cache: KeyValueCache, tokens: jax.Array, counts: jax.Array
    ) -> tuple[jax.Array, KeyValueCache | None]:
        cache, places = cache.reading(tokens.shape[1], counts)
        masks = {window: cache.visible(places, window)[:, None, None] for window in set(windows)}
        x, read_cache = apply_blocks(params, tokens, places, masks, cache=cache)
        return _norm(config, params["final_norm"], last_read(x, counts)), read_cache

    def head(params: Params) -> tuple[Params, jax.Array | None]:
        table = params["embedding" if config.tied else "output"]
        if not config.never_predicted:
            return table, None
        return table, jnp.zeros(config.vocabulary_size).at[jnp.array(config.never_predicted)].set(_NEVER)

    def prepare(params: Params) -> Params:
        together = _READ_TOGETHER if config.gated else _READ_TOGETHER[:1]
        return params | {"blocks": [for_few_rows(block, *together) for block in params["blocks"]]}

    decoder = Decoder(begin, read, prepare, config.max_length)
    return linear_head_model(
        name,
        config.vocabulary_size,
        init=init,
        features=features,
        head=head,
        cap=config.logit_cap,
        special_tokens=config.special_tokens,
        decoder=decoder,
    )


def _draw(rng: jax.Array, *shape: int) -> jax.Array:
    return _DEVIATION * jax.random.normal(rng, shape)


def _init_block(rng: jax.Array, config: PublishedDecoderConfig) -> Params:
    e, rngs = config.embedding, jax.random.split(rng, 7)
    queries, keys = config.heads * config.head_size, config.key_value_heads * config.head_size
    shapes = {
        "query": (e, queries),
        "key": (e, keys),
        "value": (e, keys),
        "attention_output": (queries, e),
        "mlp_gate": (e, config.mlp),
        "mlp_input": (e, config.mlp),
        "mlp_output": (config.mlp, e),
    }
    block: Params = {}
    for rng, (name, shape) in zip(rngs, shapes.items(), strict=True):
        if config.gated or name != "mlp_gate":
            block[name] = {"kernel": _draw(rng, *shape)}
            if config.biases == "all" or (config.biases == "query_key_value" and name in _READ_TOGETHER[0]):
                block[name]["bias"] = jnp.zeros(shape[1])
    norms = {"attention_norm": e, "mlp_norm": e}
    if config.post_norms:
        norms |= {"attention_post_norm": e, "mlp_post_norm": e}
    if config.query_key_norms:
        norms |= {"query_norm": config.head_size, "key_norm": config.head_size}
    return block | {name: _init_norm(config, width) for name, width in norms.items()}


def _init_norm(config: PublishedDecoderConfig, width: int) -> Params:
    if config.norm == "layer_norm":
        return init_layer_norm(width)
    return init_gain(width) if config.norm == "rms_norm_1" else {"scale": jnp.ones(width)}


def _norm(config: PublishedDecoderConfig, params: Params, x: jax.Array) -> jax.Array:
    if config.norm == "layer_norm":
        return layer_norm(params, x, config.epsilon)
    return rms_norm(params, x, config.epsilon, plus_1=config.norm == "rms_norm_1")


def _base(config: PublishedDecoderConfig, window: int) -> float:
    return config.window_rope_base if window and config.window_rope_base is not None else config.rope_base


def _visible(length: int, window: int) -> jax.Array:
    """Mark what each query sees: bool [queries, keys]."""
    places = jnp.arange(length)
    back = places[:, None] - places
    return (back >= 0) & (back < window) if window else back >= 0


def _apply_block(
    params: Params,
    layer: int,
    x: jax.Array,
    *,
    mask: jax.Array,
    positions: tuple[jax.Array, jax.Array] | None,
    config: PublishedDecoderConfig,
    cache: KeyValueCache | None,
) -> tuple[jax.Array, KeyValueCache | None]:
    block = params["blocks"][layer]
    y = _norm(config, block["attention_norm"], x)
    y, cache = _attention(block, layer, y, mask=mask, positions=positions, config=config, cache=cache)
    if config.post_norms:
        y = _norm(config, block["attention_post_norm"], y)
    x = x + y
    y = _mlp(block, _norm(config, block["mlp_norm"], x), config)
    if config.post_norms:
        y = _norm(config, block["mlp_post_norm"], y)
    return x + y, cache


def _mlp(block: Params, x: jax.Array, config: PublishedDecoderConfig) -> jax.Array:
    activation = _ACTIVATIONS[config.activation]
    if not config.gated:
        return dense(block["mlp_output"], activation(dense(block["mlp_input"], x)))
    gate, y = dense_together(block, {"mlp_gate": config.mlp, "mlp_input": config.mlp}, x)
    return dense(block["mlp_output"], activation(gate) * y)


def _attention(
    block: Params,
    layer: int,
    x: jax.Array,
    *,
    mask: jax.Array,
    positions: tuple[jax.Array, jax.Array] | None,
    config: PublishedDecoderConfig,
    cache: KeyValueCache | None,
) -> tuple[jax.Array, KeyValueCache | None]:
    batch, time, _ = x.shape

    keys = config.key_value_heads * config.head_size
    widths = {"query": config.heads * config.head_size, "key": keys, "value": keys}
    q, k_btkd, v_btkd = (y.reshape(batch, time, -1, config.head_size) for y in dense_together(block, widths, x))
    if config.query_key_norms:
        q, k_btkd = _norm(config, block["query_norm"], q), _norm(config, block["key_norm"], k_btkd)
    if positions is not None:
        q, k_btkd = rotate(q, *positions), rotate(k_btkd, *positions)
    if cache is not None:
        cache, k_btkd, v_btkd = cache.add(layer, k_btkd, v_btkd)
    q_btkgd = q.reshape(batch, time, config.key_value_heads, -1, config.head_size)
    scores_bkgqt = jnp.einsum("bqkgd,btkd->bkgqt", q_btkgd, k_btkd) * config.query_scale**-0.5
    weights_bkgqt = softmax_attention_weights(soft_cap(scores_bkgqt, config.attention_cap), mask)
    y_btkgd = jnp.einsum("bkgqt,btkd->bqkgd", weights_bkgqt, v_btkd)
    return dense(block["attention_output"], y_btkgd.reshape(batch, time, -1)), cache
