"""In which precision a model computes. Parameters, gradients and losses are float32 under every policy.

| policy     | matrix products                               | activations |
| ---------- | --------------------------------------------- | ----------- |
| `float32`  | float32, also where hardware offers less      | float32     |
| `tf32`     | TensorFloat-32 where the hardware has it      | float32     |
| `bfloat16` | bfloat16 inputs                               | bfloat16    |
| `auto`     | `float32` on a CPU, `tf32` on a GPU, `bfloat16` on a TPU          ||

Layer norms, the attention's softmax or normalisation, the scale-invariant activations and the loss compute
in float32 inside, whatever the policy.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedlm.models.base import Decoder, Model, Params
from fedlm.models.pickling import made_by

Precision = Literal["auto", "float32", "tf32", "bfloat16"]

_BY_PLATFORM: dict[str, Precision] = {"cpu": "float32", "gpu": "tf32", "tpu": "bfloat16"}
_MATMUL: dict[Precision, str] = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}


def resolve_precision(policy: Precision, platform: str) -> Precision:
    """Replace `auto` by what it means on a platform: `cpu`, `gpu` or `tpu`, as `jax.default_backend()` says."""
    return _BY_PLATFORM.get(platform, "float32") if policy == "auto" else policy


def precision_scope(policy: Precision) -> AbstractContextManager:
    """Set the precision of matrix products for the code that is traced and run inside to a resolved policy's."""
    return jax.default_matmul_precision(_MATMUL[policy])


def with_precision(model: Model, policy: Precision) -> Model:
    """Make a model compute its activations as a resolved policy says.

    Parameters, gradients and logits stay float32; only `bfloat16` changes the model.
    """
    return made_by(_in_bfloat16, model) if policy == "bfloat16" else model


def _in_bfloat16(model: Model) -> Model:
    def low(params: Params) -> Params:
        return jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.bfloat16), params)

    with_frozen, with_dropout = model.with_frozen, model.with_dropout
    return dataclasses.replace(
        model,
        apply=lambda params, tokens: model.apply(low(params), tokens).astype(jnp.float32),
        loss=lambda params, batch: model.loss(low(params), batch),
        decoder=model.decoder and _with_low(model.decoder, low),
        with_frozen=None if with_frozen is None else lambda frozen: _in_bfloat16(with_frozen(low(frozen))),
        with_dropout=None if with_dropout is None else lambda rate: _in_bfloat16(with_dropout(rate)),
    )


def _with_low(decoder: Decoder, low: Callable[[Params], Params]) -> Decoder:
    def read(params: Params, state: Any, tokens: jax.Array, counts: jax.Array) -> tuple[jax.Array, Any]:
        logits, state = decoder.read(params, state, tokens, counts)
        return logits.astype(jnp.float32), state

    return decoder._replace(read=read, prepare=lambda params: decoder.prepare(low(params)))
