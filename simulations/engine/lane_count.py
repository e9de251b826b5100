"""How many clients to train together on one device."""

import jax

from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm, sent_by_client, sent_by_server
from fedlm.models.base import Model, parameter_count

_COPIES_PER_LANE = 6
"""Parameters, gradient, update, its compressed form and room for the compiler's temporaries."""
_MEMORY_SHARE = 0.6


def choose_lanes(
    parameters: int, cohort_size: int, devices: list[jax.Device] | None = None, more_copies: int = 0
) -> int:
    """Return how many lanes each of the devices that share a cohort has; all devices of all processes where None. A
    lane holds so many arrays of the parameters' size more than with SGD.

    That is 1 on a CPU, whose cores a single lane fills best; elsewhere as many as the cohort can use and the device's
    memory holds, at least 1.
    """
    count = jax.device_count() if devices is None else len(devices)
    device = jax.local_devices()[0] if devices is None else devices[0]
    if device.platform == "cpu":
        return 1
    wanted = -(-cohort_size // (2 * count))
    memory = (device.memory_stats() or {}).get("bytes_limit")
    if memory is None:
        return max(1, min(wanted, 8))
    fits = int(_MEMORY_SHARE * memory / (4 * parameters * (_COPIES_PER_LANE + more_copies)))
    return max(1, min(wanted, fits))


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
