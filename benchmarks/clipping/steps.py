"""Gradient steps over a logical batch, compiled: non-private, with each of our clipping methods, and jax-privacy's.

A step is the gradient of a whole logical batch: of its mean loss, or the sum of its clipped gradients. There is no
optimizer and no noise. Batches are cut into microbatches that a `lax.scan` takes one after the other, and into lanes, a
device each.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.fl_core.clipping.methods import METHODS, Clipping, clipped_sum
from fedlm.models.base import Batch, Model, Params, WeightedBatch, weigh_examples
from fedlm.models.families.masked_language import MaskedBatch, mask_id
from fedlm.models.special_tokens import PAD_ID, SPECIAL_TOKENS

PLAIN, JAX_PRIVACY = "plain", "jax_privacy"
KINDS = (PLAIN, *METHODS, JAX_PRIVACY)
CLIP_NORM = 1.0
MASKED_PART = 0.15
LANES = "lanes"


class Setting(NamedTuple):
    """How a step is computed.

    Attributes:
      kind: one of `KINDS`.
      microbatch: examples that a lane differentiates at a time.
      lanes: devices that share the batch.
    """

    kind: str
    microbatch: int
    lanes: int


class CompiledStep(NamedTuple):
    """A step that can be run.

    Attributes:
      setting: how it is computed.
      run: takes no arguments; returns when the gradient is there.
      memory_bytes: arguments, outputs and temporaries of one device, by the compiler's own count.
      program: gives the compiled program's text.
    """

    setting: Setting
    run: Callable[[], Params]
    memory_bytes: int
    program: Callable[[], str | None]


def draw_batch(model: Model, examples: int, length: int) -> WeightedBatch:
    """Draw full rows, of so many tokens that the model reads, whose words are as unequally frequent as a language's."""
    rng = np.random.default_rng(0)
    masked = model.objective == "masked"
    words = np.arange(len(SPECIAL_TOKENS), model.vocabulary_size - masked)
    frequency = 1 / np.arange(1, len(words) + 1)
    tokens = rng.choice(words, (examples, length + 1), p=frequency / frequency.sum()).astype(np.int32)
    weight = np.ones(examples, np.float32)
    if not masked:
        return Batch(jnp.asarray(tokens), jnp.asarray(weight))
    inputs, chosen = tokens[:, 1:], rng.random((examples, length)) < MASKED_PART
    chosen[:, 0] = True
    replaced = np.where(chosen, mask_id(model.vocabulary_size - 1), inputs).astype(np.int32)
    targets = np.where(chosen, inputs, PAD_ID).astype(np.int32)
    return MaskedBatch(jnp.asarray(replaced), jnp.asarray(targets), jnp.asarray(weight))


def compile_step(model: Model, params: Params, batch: WeightedBatch, setting: Setting) -> CompiledStep:
    """Compile a step.

    Args:
      model: what is differentiated.
      params: its parameters.
      batch: the logical batch; lanes times microbatch divides its rows.
      setting: how.

    Returns:
      The step.
    """
    mesh = Mesh(np.array(jax.local_devices()[: setting.lanes]), LANES)
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(LANES)))
    compiled = jax.jit(step_over(mesh, model, setting)).lower(params, batch).compile()
    run = functools.partial(compiled, params, batch)
    return CompiledStep(setting, lambda: jax.block_until_ready(run()), _planned(compiled), compiled.as_text)


def compiled_memory(model: Model, examples: int, length: int, setting: Setting) -> int:
    """Say how many bytes the compiler plans for a step on one device over a batch of a causal model, which is not
    computed."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((examples, length + 1), jnp.int32)
    batch = Batch(tokens, jax.ShapeDtypeStruct((examples,), jnp.float32))  # type: ignore[arg-type]
    mesh = Mesh(np.array(jax.local_devices()[:1]), LANES)
    return _planned(jax.jit(step_over(mesh, model, setting)).lower(params, batch).compile())


def _planned(compiled: jax.stages.Compiled) -> int:
    used: Any = compiled.memory_analysis()
    return used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes


def step_over(mesh: Mesh, model: Model, setting: Setting) -> Callable[[Params, WeightedBatch], Params]:
    """Make the function of parameters and batch that a step computes on the devices of a mesh."""

    def lane(params: Params, rows: WeightedBatch) -> Params:
        return jax.lax.psum(_lane_sum(model, params, rows, setting), LANES)

    def step(params: Params, batch: WeightedBatch) -> Params:
        total = jax.shard_map(
            lane,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(LANES)),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(params, batch)
        gradient, tokens = total
        if setting.kind != PLAIN:
            return gradient
        return jax.tree_util.tree_map(lambda leaf: leaf / jnp.maximum(tokens, 1.0), gradient)

    return step


def _lane_sum(model: Model, params: Params, rows: WeightedBatch, setting: Setting) -> tuple[Params, jax.Array]:
    """Sum gradients over a lane's rows; beside it the number of their targets, which only `plain` counts."""
    examples = len(rows.weight)
    if setting.kind == JAX_PRIVACY:
        return _jax_privacy(model, setting.microbatch)(params, rows), jnp.zeros(())
    one = _ONE_MICROBATCH.get(setting.kind, _clipped)
    if setting.microbatch >= examples:
        return one(setting, model, params, rows)
    cut = jax.tree_util.tree_map(lambda leaf: leaf.reshape(-1, setting.microbatch, *leaf.shape[1:]), rows)
    zero = jax.tree_util.tree_map(jnp.zeros_like, params), jnp.zeros(())

    def add(total: tuple, microbatch: WeightedBatch) -> tuple[tuple, None]:
        return jax.tree_util.tree_map(jnp.add, total, one(setting, model, params, microbatch)), None

    return jax.lax.scan(add, zero, cut)[0]


def _plain(_: Setting, model: Model, params: Params, rows: WeightedBatch) -> tuple[Params, jax.Array]:
    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        sums = weigh_examples(model.loss(params, rows), rows)
        return jnp.sum(sums.loss), jnp.sum(sums.tokens)

    return jax.grad(loss, has_aux=True)(params)


def _clipped(setting: Setting, model: Model, params: Params, rows: WeightedBatch) -> tuple[Params, jax.Array]:
    how = Clipping(setting.kind, CLIP_NORM)  # type: ignore[arg-type]
    return clipped_sum(how, model, params, rows, units=len(rows.weight)).gradient, jnp.zeros(())


def _jax_privacy(model: Model, microbatch: int) -> Callable[[Params, Any], Params]:
    from jax_privacy import clipping

    def loss(params: Params, row: WeightedBatch) -> jax.Array:
        sums = weigh_examples(model.loss(params, row), row)
        return jnp.sum(sums.loss) / jnp.maximum(jnp.sum(sums.tokens), 1.0)

    return clipping.clipped_grad(loss, l2_clip_norm=CLIP_NORM, microbatch_size=microbatch)


_ONE_MICROBATCH = {PLAIN: _plain}
