"""How many clients to train together on one device."""

import jax

_COPIES_PER_LANE = 6
"""Parameters, gradient, update, its compressed form and room for the compiler's temporaries."""
_MEMORY_SHARE = 0.6


def choose_lanes(parameters: int, cohort_size: int, devices: list[jax.Device] | None = None) -> int:
    """Return how many lanes each of the devices that share a cohort has; all devices of all processes where None.

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
    fits = int(_MEMORY_SHARE * memory / (4 * parameters * _COPIES_PER_LANE))
    return max(1, min(wanted, fits))
