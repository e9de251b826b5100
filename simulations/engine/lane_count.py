"""How many clients to train together on one device."""

import math

import jax
import numpy as np

from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm, sent_by_client, sent_by_server
from fedlm.models.base import Model, parameter_count

_COPIES_PER_LANE = 6
"""Parameters, gradient, update, its compressed form and room for the compiler's temporaries."""
_MEMORY_SHARE = 0.6


def choose_lanes(
    parameters: int,
    cohort_size: int,
    steps: np.ndarray,
    *,
    devices: list[jax.Device] | None = None,
    more_copies: int = 0,
) -> int:
    """Choose how many lanes each of the devices that share a cohort has.

    That is 1 on a CPU, whose cores a single lane fills best; elsewhere as many as the cohort can use and the device's
    memory holds, at least 1. A cohort can use no more than what its longest client leaves the others to fill: with more
    lanes, a round has as many steps one after another, each of which costs more.

    Args:
      parameters: of the model.
      cohort_size: clients of a round.
      steps: int [clients], local steps of each of the clients that cohorts are drawn from.
      devices: those that share a cohort; all of all processes where None.
      more_copies: arrays of the parameters' size that a lane holds beyond those of SGD.
    """
    count = jax.device_count() if devices is None else len(devices)
    device = jax.local_devices()[0] if devices is None else devices[0]
    if device.platform == "cpu":
        return 1
    filled = cohort_size * float(steps.mean()) / max(_expected_longest(steps, cohort_size), 1.0)
    wanted = math.ceil(min(cohort_size / 2, filled) / count)
    memory = (device.memory_stats() or {}).get("bytes_limit")
    if memory is None:
        return max(1, min(wanted, 8))
    fits = int(_MEMORY_SHARE * memory / (4 * parameters * (_COPIES_PER_LANE + more_copies)))
    return max(1, min(wanted, fits))


def _expected_longest(steps: np.ndarray, cohort_size: int) -> float:
    """Give the steps of the longest of so many clients, on average over draws with replacement."""
    below = (np.arange(len(steps) + 1) / len(steps)) ** cohort_size
    return float(np.sort(steps) @ np.diff(below))


def copies_beyond_sgd(algorithm: ClientAlgorithm, model: Model) -> int:
    """Count the arrays of the parameters' size that a lane holds because its algorithm is not SGD: what it remembers,
    and what it sends beside the delta, which is compressed too."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    local = jax.eval_shape(algorithm.init, sent_by_server(algorithm, params))
    remembered, sent = (
        sum(leaf.size for leaf in jax.tree_util.tree_leaves(tree))
        for tree in (local.memory, sent_by_client(algorithm, params))
    )
    size = parameter_count(model)
    return round((remembered + 2 * (sent - size)) / size)
