import jax.numpy as jnp
import pytest

from benchmarks.accelerator.parity import bounds_of, relative_difference
from fedlm.models.registry import MODELS


@pytest.mark.parametrize("model", [*MODELS, "decoder_100m"])
def test_every_model_has_bounds_that_a_coarser_precision_exceeds(model):
    bounds = bounds_of(model)
    bfloat16 = bounds["bfloat16"] / 8  # about what it does
    assert bounds["tf32"] < bfloat16
    assert bounds["float32"] < bfloat16 / 2**3 < bounds["tf32"]
    assert bounds["float32"] > 4 * bounds["bfloat16"] / 2**16


def test_differences_are_relative_to_the_reference_and_infinite_where_values_are():
    reference = {"a": jnp.array([3.0, 4.0]), "b": jnp.zeros(2)}
    assert relative_difference(reference, reference) == 0
    assert relative_difference({"a": jnp.array([3.0, 4.0]), "b": jnp.array([0.0, 0.5])}, reference) == 0.1
    assert relative_difference({"a": jnp.array([3.0, jnp.nan]), "b": jnp.zeros(2)}, reference) == float("inf")
