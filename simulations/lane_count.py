"""How many clients to train together on one device."""

import jax

_COPIES_PER_LANE = 6
"""Parameters, gradient, update, its compressed form and room for the compiler's temporaries."""
_MEMORY_SHARE = 0.6


def choose_lanes(parameters: int, cohort_size: int, devices: list[jax.Device] | None = None) -> int:
    """Choose the lanes of each device.

    Args:
      parameters: how many the model has.
      cohort_size: clients of a round.
      devices: that share the cohort; all local devices where None.

    Returns:
      1 on a CPU, whose cores a single lane fills best; elsewhere as many as the cohort can use and the device's
      memory holds, at least 1.
    """
    devices = jax.local_devices() if devices is None else devices
    if devices[0].platform == "cpu":
        return 1
    wanted = -(-cohort_size // (2 * len(devices)))
    memory = (devices[0].memory_stats() or {}).get("bytes_limit")
    if memory is None:
        return max(1, min(wanted, 8))
    fits = int(_MEMORY_SHARE * memory / (4 * parameters * _COPIES_PER_LANE))
    return max(1, min(wanted, fits))
