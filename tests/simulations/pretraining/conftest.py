"""Settings of this folder's tests."""

import jax
import pytest


@pytest.fixture(autouse=True)
def full_precision_products():
    """Hold float32 products to float32 accuracy also where the hardware's default is lower."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Compile without costly optimizations: these tests compile far more than they compute."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
