"""What the device can do at best: rates of large matrix products, bandwidth of its memory, transfers, dispatch.

All other measurements are put in proportion to these, measured in the same run. Values are random: some devices
multiply zeros faster.
"""

from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator.timing import time_runs
from fedlm.models.precision import Precision, precision_scope

POLICIES = tuple(policy for policy in get_args(Precision) if policy != "auto")
AT_ONCE = 10


def measure_products(sizes: list[int], patience: float) -> dict[str, Any]:
    """Measure floating point operations a second of square products, of the best size in each precision."""
    rates: dict[str, dict[str, float]] = {}
    for policy in POLICIES:
        dtype = jnp.bfloat16 if policy == "bfloat16" else jnp.float32
        rates[policy] = {}
        for size in sizes:
            one, other = (jax.random.normal(jax.random.key(seed), (size, size), dtype) for seed in (0, 1))
            with precision_scope(policy):
                product = jax.jit(lambda one, other: one @ other)
                run = lambda product=product, one=one, other=other: product(one, other)  # noqa: E731
                jax.block_until_ready(run())
                seconds = time_runs(run, patience, at_once=AT_ONCE)
            rates[policy][str(size)] = 2 * size**3 / seconds.median
    return {"flops_per_second": {policy: max(of.values()) for policy, of in rates.items()}, "by_size": rates}


def measure_memory(mebibytes: int, patience: float) -> dict[str, Any]:
    """Measure bytes a second: of reading an array and writing another, from the host and to it; and a call's cost."""
    count = mebibytes * 2**20 // 4
    here = np.random.default_rng(0).standard_normal(count, np.float32)
    there = jax.block_until_ready(jax.device_put(here))
    plus_one = jax.jit(lambda x: x + 1)
    jax.block_until_ready(plus_one(there))
    copied = time_runs(lambda: plus_one(there), patience, at_once=AT_ONCE)
    sent = time_runs(lambda: jax.device_put(here), patience)
    # An array that was fetched once is remembered by JAX: fetch a new one each time.
    fresh = iter(jax.block_until_ready([plus_one(there) for _ in range(3)]))
    fetched = time_runs(lambda: np.asarray(next(fresh)), 0.0, least=3)
    small = jax.block_until_ready(jnp.zeros(8))
    jax.block_until_ready(plus_one(small))
    alone = time_runs(lambda: plus_one(small), patience, least=20)
    queued = time_runs(lambda: plus_one(small), patience, least=3, at_once=200)
    return {
        "bytes_per_second": 2 * here.nbytes / copied.median,
        "from_host_bytes_per_second": here.nbytes / sent.median,
        "to_host_bytes_per_second": here.nbytes / fetched.median,
        "seconds_of_a_call_that_is_waited_for": alone.median,
        "seconds_of_a_queued_call": queued.median,
    }
