"""Whether the accelerator computes what the CPU does: a round, a private step and noise, in each precision.

The reference is this process' CPU in float32. Compared are the mean update of a small round, uploads as they are, and
the sum of clipped gradients of a private step: the norm of the difference over the norm of the reference. Bounds are by
precision and kind of model. That of bfloat16 is two to ten times what it did to these sums on a CPU. TensorFloat-32
keeps three bits more, and float32 sixteen: their bounds lie above what follows from that, and below what the next
coarser precision does, so that one that is coarser than it should be is noticed.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator.peaks import POLICIES
from benchmarks.accelerator.private_steps import build
from benchmarks.accelerator.rounds import draw_clients
from benchmarks.clipping.steps import draw_batch
from fedlm.fl_core.clipping.methods import Clipping, clipped_sum
from fedlm.fl_core.privacy.noise.noise_source import noise_from
from fedlm.fl_core.rounds.aggregation import AggregationRules, mean_delta
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.models.base import Model, Params
from fedlm.models.precision import Precision, precision_scope, with_precision
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine

BFLOAT16_BOUNDS = {
    "si_transformer": 0.7,
    "si_cifg": 0.25,
    "transformer": 0.1,
    "decoder": 0.1,
    "bert": 0.05,
    "vaultgemma": 0.05,
    "cifg": 0.05,
    "gru4rec": 0.05,
    "lstm4rec": 0.05,
    "sasrec": 0.05,
    "dpformer": 0.05,
}
"""Relative differences in bfloat16, by how the name of a model begins."""
PART_OF_BFLOAT16 = {"float32": 0.004, "tf32": 0.1, "bfloat16": 1.0}
"""How much of that is granted in each precision."""
NOISE_BOUND = 1e-4
"""Of standard normal values: the relative difference that two devices' inverse error functions make. Single values far
out in the tails differ by more, where one device rounds a product that the other fuses with the sum that follows."""
CLIENTS, BATCH_SIZE, MOST_STEPS = 4, 4, 3
EXAMPLES = 4


def measure(model: str, length: int, vocabulary: int | None) -> dict[str, Any]:
    """Compare one model: the relative difference of each computation in each precision, its bound, and whether it
    holds.

    Models that predict masked tokens have no rounds.
    """
    plain = build(model, vocabulary)
    params = jax.tree_util.tree_map(np.asarray, plain.init(jax.random.key(0)))
    computations: dict[str, Callable[..., Params]] = {"private_step": _private_step}
    if plain.objective == "causal":
        computations["round"] = _round
    differences: dict[str, dict[str, float]] = {policy: {} for policy in POLICIES}
    for name, compute in computations.items():
        reference = _run(compute, plain, params, length, "float32", jax.devices("cpu")[0])
        for policy in POLICIES:
            found = _run(compute, plain, params, length, policy, jax.local_devices()[0])
            differences[policy][name] = relative_difference(found, reference)
    bounds = bounds_of(model)
    return {
        "differences": differences,
        "bounds": bounds,
        "within": {policy: max(of.values()) <= bounds[policy] for policy, of in differences.items()},
    }


def bounds_of(model: str) -> dict[str, float]:
    """Say what relative difference is granted to a model in each precision."""
    of_kind = next(bound for begins, bound in BFLOAT16_BOUNDS.items() if model.startswith(begins))
    return {policy: of_kind * PART_OF_BFLOAT16[policy] for policy in POLICIES}


def measure_noise(parameters: int) -> dict[str, Any]:
    """Compare the noise that one secret gives on both."""
    like = {"x": np.zeros(parameters, np.float32)}
    drawn = []
    for device in (jax.devices("cpu")[0], jax.local_devices()[0]):
        with jax.default_device(device):
            drawn.append(np.asarray(noise_from(bytes(32), like)([(1.0, (0,))])["x"]))
    difference = relative_difference({"x": drawn[1]}, {"x": drawn[0]})
    return {
        "difference": difference,
        "greatest_difference": float(np.max(np.abs(drawn[0] - drawn[1]))),
        "bound": NOISE_BOUND,
        "within": {"float32": difference <= NOISE_BOUND},
    }


def relative_difference(found: Params, reference: Params) -> float:
    """Divide the norm of the difference by the norm of the reference; infinity where anything is not finite."""
    pairs = zip(*map(jax.tree_util.tree_leaves, (found, reference)), strict=True)
    squares = [(np.sum((one - other) ** 2), np.sum(other**2)) for one, other in _in_float64(pairs)]
    difference, size = map(float, np.sum(squares, axis=0))
    return (difference / size) ** 0.5 if np.isfinite(difference) and size > 0 else float("inf")


def _in_float64(pairs: Any) -> Any:
    return (tuple(np.asarray(leaf, np.float64) for leaf in pair) for pair in pairs)


def _run(
    compute: Callable[..., Params], model: Model, params: Params, length: int, policy: Precision, device: jax.Device
) -> Params:
    with jax.default_device(device), precision_scope(policy):
        result = compute(with_precision(model, policy), jax.device_put(params, device), length, device)
        return jax.tree_util.tree_map(np.asarray, result)


def _round(model: Model, params: Params, length: int, device: jax.Device) -> Params:
    training = LocalTraining(batch_size=BATCH_SIZE, max_batches=MOST_STEPS)
    data = draw_clients(CLIENTS, model.vocabulary_size, length, MOST_STEPS)
    work = ClientWork(model, training, make_compressor("float32"), AggregationRules())
    engine = CohortEngine(work, data, length, devices=[device], lanes_per_device=2, steps_per_chunk=4)
    plan = RoundPlan(0, np.arange(CLIENTS), 0, 0.1)
    return mean_delta(engine.run(params, plan, clip_norm=1.0).aggregate)


def _private_step(model: Model, params: Params, length: int, device: jax.Device) -> Params:
    batch = jax.device_put(draw_batch(model, EXAMPLES, length), device)
    how = Clipping("bookkeeping", 1.0)
    step = jax.jit(functools.partial(_clipped, how, model))
    return step(params, batch)


def _clipped(how: Clipping, model: Model, params: Params, batch: Any) -> Params:
    gradient = clipped_sum(how, model, params, batch, units=EXAMPLES).gradient
    return jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.float32), gradient)
