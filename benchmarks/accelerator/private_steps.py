"""Private gradient steps of central training against the non-private one: tokens a second, utilization, memory.

A step is the gradient of a logical batch, without optimizer and noise (`benchmarks/clipping/steps.py`): non-private, by
each of our clipping methods, or jax-privacy's. Each takes the microbatch that is fastest for it. What counts as useful
arithmetic is the matrix products of a non-private gradient; divided by the rate of large products that was measured in
the same run, it is the model FLOPs utilization (MFU; Chowdhery et al. 2022, "PaLM", appendix B).
"""

import time
from typing import Any

import jax

from benchmarks.accelerator import matrix_products
from benchmarks.accelerator.timing import first_seconds, memory_now, time_runs
from benchmarks.accelerator.workers import is_out_of_memory
from benchmarks.clipping.steps import Setting, compile_step, draw_batch
from fedlm.models.base import Model, Params, WeightedBatch, batch_loss, parameter_count
from fedlm.models.families.transformer import TransformerConfig, transformer
from fedlm.models.precision import Precision, precision_scope, with_precision
from fedlm.models.registry import create_model

DECODER = "decoder_100m"
DECODER_CONFIG = TransformerConfig(vocabulary_size=32_000, layers=12, heads=12, embedding=768, mlp=3072)
SMALLER = 4
"""How many times smaller the next microbatch is."""


def measure(
    model: str,
    precision: Precision,
    kind: str,
    examples: int,
    length: int,
    vocabulary: int | None,
    microbatches: int,
    patience: float,
    enough: float,
) -> dict[str, Any]:
    """Time one kind of step.

    Args:
      model: its name.
      precision: what it computes in.
      kind: one of `benchmarks.clipping.steps.KINDS`.
      examples: of the logical batch.
      length: tokens of an example.
      vocabulary: number of token ids; the model's own where None.
      microbatches: how many sizes are tried at most, the whole batch first, then smaller ones while they are faster.
      patience: seconds of timing of each.
      enough: seconds after which no further size is tried; compiling one may take most of them.

    Raises:
      RuntimeError: no microbatch that was tried fits into memory.
    """
    built = with_precision(build(model, vocabulary), precision)
    params, batch = built.init(jax.random.key(0)), draw_batch(built, examples, length)
    tried: list[dict[str, Any]] = []
    began = time.perf_counter()
    with precision_scope(precision):
        for size in _sizes(examples, microbatches):
            tried.append(_try(built, params, batch, Setting(kind, size, jax.local_device_count()), patience))
            timed = [one for one in tried if "seconds" in one]
            if timed and time.perf_counter() - began > enough:
                break
            if len(timed) > 1 and tried[-1] is not min(timed, key=_median):
                break
        useful = model_flops_a_token(built, params, batch, length)
    if not timed:
        raise RuntimeError(f"RESOURCE_EXHAUSTED: {tried[-1]['out_of_memory']}")
    best = min(timed, key=_median)
    return {
        "parameters": parameter_count(built),
        "examples": examples,
        "length": length,
        "devices": jax.local_device_count(),
        "model_flops_a_token": useful,
        **best,
        "tokens_per_second": examples * length / _median(best),
        "tried": tried,
        "memory": memory_now(),
    }


def build(model: str, vocabulary: int | None) -> Model:
    """Build a model of the registry, or the decoder of 100 M parameters, which has a vocabulary of its own."""
    return transformer(DECODER, DECODER_CONFIG) if model == DECODER else create_model(model, vocabulary)


def model_flops_a_token(model: Model, params: Params, batch: WeightedBatch, length: int) -> float:
    """Count the arithmetic of the matrix products of a non-private gradient, in floating point operations a token."""
    row = jax.tree_util.tree_map(lambda leaf: leaf[:1], batch)
    gradient = jax.grad(lambda params, row: batch_loss(model, params, row)[0])
    return matrix_products.total_flops(matrix_products.products_of(gradient, params, row)) / length


def _sizes(examples: int, most: int) -> list[int]:
    share = examples // jax.local_device_count()
    return [share // SMALLER**power for power in range(most) if share % SMALLER**power == 0]


def _try(model: Model, params: Params, batch: WeightedBatch, setting: Setting, patience: float) -> dict[str, Any]:
    result: dict[str, Any] = {"microbatch": setting.microbatch}
    try:
        step = compile_step(model, params, batch, setting)
        first_seconds(step.run)
        seconds = time_runs(step.run, patience)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return result | {"out_of_memory": str(error)[:200]}
    return result | {"seconds": seconds.as_json(), "planned_bytes": step.memory_bytes}


def _median(one: dict[str, Any]) -> float:
    return one["seconds"]["median"]
