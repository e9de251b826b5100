"""What our models call of JAX and the JAX that FedJAX and TensorFlow Federated need (0.4.20) has not got yet."""

from collections.abc import Callable
from typing import Any

import jax


def supply_missing() -> None:
    """Put into `jax.lax` what it lacks; where nothing is missing, nothing changes.

    The layouts of matrix products are then left to the compiler: results are the same to rounding, and steps slower.
    """
    for name, substitute in (
        ("optimization_barrier", lambda operand: operand),
        ("platform_dependent", _on_any_platform),
    ):
        if not hasattr(jax.lax, name):
            setattr(jax.lax, name, substitute)


def _on_any_platform(*operands: Any, default: Callable[..., Any], **by_platform: Callable[..., Any]) -> Any:
    return default(*operands)
