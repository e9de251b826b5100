"""How much arithmetic a training step takes, and how much a device can do, for model FLOPs utilisation."""

from fedlm.models.base import Model, parameter_count

PEAK_FLOPS = {
    "H100": {"tf32": 494.7e12, "bfloat16": 989.4e12, "float32": 66.9e12},
    "H200": {"tf32": 494.7e12, "bfloat16": 989.4e12, "float32": 66.9e12},
    "A100": {"tf32": 156e12, "bfloat16": 312e12, "float32": 19.5e12},
}
"""Operations a second without sparsity, from the vendors' data sheets, by a part of the device's name."""


def peak_flops(device_kind: str, precision: str) -> float | None:
    """Look up the peak rate of a device in operations a second, None where it is not known."""
    return next((rates[precision] for name, rates in PEAK_FLOPS.items() if name in device_kind), None)


def training_flops_per_token(model: Model, adapters: Model | None = None) -> float:
    """Count a training step's operations as scaling laws do (Kaplan et al. 2020): six for each parameter and token, and
    four for one that is frozen beside adapters, which has no gradient. Attention scores are left out."""
    if adapters is None:
        return 6.0 * parameter_count(model)
    return 4.0 * parameter_count(model) + 6.0 * parameter_count(adapters)
