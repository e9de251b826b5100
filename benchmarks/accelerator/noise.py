"""What a round's noise costs on the device, by mechanism, against one plain Gaussian draw (`benchmarks/privacy`)."""

from typing import Any

import jax
import numpy as np

from benchmarks.accelerator.timing import first_seconds, memory_now, time_runs
from benchmarks.privacy.noise_cost import state_bytes, time_block
from fedlm.fl_core.privacy.noise.noise_source import fresh_secret, noise_from

PLAIN = "plain draw"


def measure(mechanism: str, parameters: int, block: int, passes: int) -> dict[str, Any]:
    """Time the noise of a mechanism.

    Args:
      mechanism: a name of the registry, or `plain draw`.
      parameters: float32 values of a round's noise.
      block: rounds that are timed together, a power of two.
      passes: how often they are timed.
    """
    like = {"x": np.zeros((parameters // 1000, 1000), np.float32)}
    if mechanism == PLAIN:
        plain = jax.jit(lambda key: jax.random.normal(key, like["x"].shape))
        first_seconds(lambda: plain(jax.random.key(0)))
        seconds = [time_runs(lambda: plain(jax.random.key(1)), 0.0).median for _ in range(passes)]
        kept = 0
    else:
        draw = noise_from(fresh_secret(), like)
        time_block(mechanism, like, draw, block)
        seconds = [time_block(mechanism, like, draw, block) for _ in range(passes)]
        kept = state_bytes(mechanism, like)
    return {
        "parameters": parameters,
        "seconds_a_round": float(np.median(seconds)),
        "state_bytes": kept,
        "memory": memory_now(),
    }
