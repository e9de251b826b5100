"""Whole steps of central training of Gemma decoders, plain and private: tokens a second, utilization, memory.

A step is what `fedlm pretrain` does with a logical batch: gradients of its microbatches, their sum, with privacy noise
that is drawn anew, and Adam. Only the input is not made: one batch stays on the host. Useful arithmetic is six
operations for each parameter and token (`fedlm.simulations.pretraining.flops`), as runs state their MFU, but divided by
the rate of large products that was measured in the same run.
"""

import time
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.accelerator.timing import first_seconds, memory_now, time_runs
from benchmarks.accelerator.workers import is_out_of_memory
from benchmarks.clipping.steps import draw_batch
from fedlm.fl_core.clipping.methods import Clipping
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret
from fedlm.models.base import Model, parameter_count
from fedlm.models.precision import Precision, precision_scope, with_precision
from fedlm.models.registry import create_model
from fedlm.simulations.pretraining.device_plan import plan_step
from fedlm.simulations.pretraining.flops import training_flops_per_token
from fedlm.simulations.pretraining.microbatches import StepRules
from fedlm.simulations.pretraining.trainer import Trainer

_LEARNING_RATE = 1e-4


def measure(
    model: str,
    precision: Precision,
    private: bool,
    examples: int,
    length: int,
    vocabulary: int | None,
    microbatches: list[int],
    patience: float,
    enough: float,
) -> dict[str, Any]:
    """Time steps of a logical batch, with the microbatch that is fastest.

    Args:
      model: its name.
      precision: what it computes in.
      private: whether gradients are clipped, by bookkeeping, and noise is added.
      examples: of the logical batch.
      length: tokens of an example.
      vocabulary: number of token ids; the model's own where None.
      microbatches: examples that a device takes at once, of each that is tried.
      patience: seconds of timing of each.
      enough: seconds after which no further one is tried.

    Raises:
      RuntimeError: none that was tried fits into memory.
    """
    built = with_precision(create_model(model, vocabulary), precision)
    tried: list[dict[str, Any]] = []
    began = time.perf_counter()
    with precision_scope(precision):
        for size in microbatches:
            tried.append(_try(built, private, examples, length, size, patience))
            if time.perf_counter() - began > enough:
                break
    timed = [one for one in tried if "seconds" in one]
    if not timed:
        raise RuntimeError(f"RESOURCE_EXHAUSTED: {tried[-1]['out_of_memory']}")
    best = min(timed, key=lambda one: one["seconds"]["median"])
    return {
        "parameters": parameter_count(built),
        "examples": examples,
        "length": length,
        "devices": jax.device_count(),
        "model_flops_a_token": training_flops_per_token(built),
        **best,
        "tokens_per_second": examples * length / best["seconds"]["median"],
        "tried": tried,
        "memory": memory_now(),
    }


def _try(model: Model, private: bool, examples: int, length: int, microbatch: int, patience: float) -> dict[str, Any]:
    result: dict[str, Any] = {"microbatch": microbatch}
    clipping = Clipping("bookkeeping", 1.0) if private else None
    rules = StepRules(clipping, float(private), examples, microbatch)
    trainer = Trainer(model, optax.adam(_LEARNING_RATE), rules, "full" if jax.device_count() > 1 else "data")
    try:
        seconds_to_first, seconds = _time(trainer, model, private, examples, length, patience)
        plan = plan_step(trainer, 1, length)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return result | {"out_of_memory": str(error)[:200]}
    return result | {
        "seconds": seconds.as_json(),
        "seconds_of_first_step": round(seconds_to_first, 3),
        "planned_bytes": plan.memory,
        "planned_bytes_by_phase": {phase.name: phase.memory for phase in plan.phases},
    }


def _time(trainer: Trainer, model: Model, private: bool, examples: int, length: int, patience: float) -> tuple:
    draw = trainer.draw_noise(fresh_secret()) if private else None
    chunks = _chunks(model, trainer.chunk_units, examples, length)
    state = trainer.place(trainer.fresh(model.init(jax.random.key(0))))
    number = 0

    def step() -> Any:
        nonlocal state, number
        totals = trainer.zero()
        for chunk in chunks:
            totals = trainer.add(state.params, totals, chunk)
        noise = None if draw is None else draw([(1.0, (0, number))])
        state, report = trainer.step(state, totals, noise)
        number += 1
        return state, report

    return first_seconds(step), time_runs(step, patience)


def _chunks(model: Model, units: int, examples: int, length: int) -> list[dict[str, np.ndarray]]:
    batch = draw_batch(model, examples, length)
    arrays = {name: np.asarray(array)[:, None] for name, array in batch._asdict().items() if array is not None}
    missing = -examples % units
    padded = {
        name: np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
        for name, array in arrays.items()
    }
    return [
        {name: array[start : start + units] for name, array in padded.items()}
        for start in range(0, examples + missing, units)
    ]
