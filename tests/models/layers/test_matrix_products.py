"""Products whose gradients are copied into another layout first, held to float64; and what is compiled of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.layers import matrix_products
from fedlm.models.layers.matrix_products import (
    inner_product_error,
    inner_products,
    sum_of_outer_products,
)

# Wide inputs, wide outputs and equal ones: whichever factor is copied, also with few and with many rows.
SHAPES = [((3, 4), 5, 7), ((3, 4), 70, 5), ((40,), 6, 6)]


@pytest.mark.parametrize(("leading", "inputs", "outputs"), SHAPES)
def test_a_sum_of_outer_products_of_many_clients_and_in_another_type(leading, inputs, outputs):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(5, *leading, width)).astype(jnp.bfloat16) for width in (inputs, outputs))
    found = jax.vmap(lambda x, y: sum_of_outer_products(x, y, jnp.float32))(x, y)
    assert found.dtype == jnp.float32
    wide_x, wide_y = (array.astype(np.float64).reshape(5, -1, array.shape[-1]) for array in (x, y))
    expected = np.swapaxes(wide_x, 1, 2) @ wide_y
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert sum_of_outer_products(x, y).dtype == jnp.bfloat16


@pytest.mark.parametrize(("inputs", "outputs"), [(512, 128), (4096, 128), (128, 512)])
def test_a_cpu_reads_no_factor_by_columns_and_an_accelerator_copies_none(inputs, outputs):
    shapes = [jax.ShapeDtypeStruct((200, width), jnp.float32) for width in (inputs, outputs)]
    traced = jax.jit(sum_of_outer_products).trace(*shapes)
    on_cpu, on_gpu = (traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda"))
    (contracted,) = re.findall(r"contracting_dims = \[(\d)\] x \[(\d)\]", on_cpu)
    assert contracted == ("1", "0")
    assert "optimization_barrier" in on_cpu
    assert "optimization_barrier" not in on_gpu
    assert "transpose" not in on_gpu


@pytest.mark.parametrize("width", [23, 30])
def test_inner_products_in_pieces_are_those_of_whole_rows(width, monkeypatch):
    x, y = (np.random.default_rng(seed).normal(size=(3, 5 + seed, width)).astype(np.float32) for seed in (0, 1))
    monkeypatch.setattr(matrix_products, "PIECE", 6)
    found = jax.jit(inner_products)(x, y)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, x.astype(np.float64) @ y.astype(np.float64).swapaxes(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, 255, 257, 8192])
def test_inner_products_are_as_exact_as_is_stated(width):
    """Also those of equal numbers, whose rounding has one sign."""
    values = np.random.default_rng(0).uniform(0.5, 1, 64).astype(np.float32)
    x = np.tile(values[None, :, None], (1, 1, width))
    exact = np.outer(values.astype(np.float64), values) * width
    found = np.asarray(jax.jit(inner_products)(x, x), np.float64)[0]
    assert np.abs(found / exact - 1).max() <= inner_product_error(width)
