"""Products whose gradients are copied into another layout first, held to float64; and what is compiled of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.layers import matrix_products
from fedlm.models.layers.matrix_products import (
    constant_product,
    inner_product_error,
    inner_products,
    product,
    sum_of_outer_products,
)

# Wide inputs, wide outputs and equal ones: whichever factor is copied, also with few and with many rows.
SHAPES = [((3, 4), 5, 7), ((3, 4), 70, 5), ((2,), 30, 40), ((40,), 6, 6)]


def arrays(leading, inputs, outputs, dtype=np.float32):
    rng = np.random.default_rng(0)
    sizes = (*leading, inputs), (inputs, outputs), (*leading, outputs)
    return [rng.normal(size=size).astype(dtype) for size in sizes]


@pytest.mark.parametrize(("leading", "inputs", "outputs"), SHAPES)
def test_values_and_gradients_of_a_product(leading, inputs, outputs):
    x, kernel, weights = arrays(leading, inputs, outputs)
    found, pull_back = jax.vjp(product, x, kernel)
    wide = [array.astype(np.float64) for array in (x, kernel, weights)]
    np.testing.assert_allclose(found, wide[0] @ wide[1], rtol=1e-5, atol=1e-5)
    of_x, of_kernel = pull_back(weights)
    np.testing.assert_allclose(of_x, wide[2] @ wide[1].T, rtol=1e-5, atol=1e-5)
    expected = wide[0].reshape(-1, inputs).T @ wide[2].reshape(-1, outputs)
    np.testing.assert_allclose(of_kernel, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("leading", "inputs", "outputs"), SHAPES)
def test_a_sum_of_outer_products_of_many_clients_and_in_another_type(leading, inputs, outputs):
    x, _, y = arrays((5, *leading), inputs, outputs, jnp.bfloat16)
    found = jax.vmap(lambda x, y: sum_of_outer_products(x, y, jnp.float32))(x, y)
    assert found.dtype == jnp.float32
    wide_x, wide_y = (array.astype(np.float64).reshape(5, -1, array.shape[-1]) for array in (x, y))
    expected = np.swapaxes(wide_x, 1, 2) @ wide_y
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert sum_of_outer_products(x, y).dtype == jnp.bfloat16


def test_a_constant_product_in_a_loop_passes_gradients_to_its_inputs_alone():
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 4)).astype(np.float32) / 2

    def last(x, kernel, prepare):
        multiply = prepare(kernel)
        return jnp.sum(jax.lax.scan(lambda x, _: (jnp.tanh(multiply(x)), None), x, None, length=5)[0] ** 2)

    found, wanted = (
        jax.value_and_grad(last)(x, kernel, prepare)
        for prepare in (constant_product, lambda kernel: lambda x: x @ kernel)
    )
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(jax.grad(last, argnums=1)(x, kernel, constant_product), 0)


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


@pytest.mark.parametrize("width", [23, 24, 30, 31])
def test_inner_products_in_pieces_are_those_of_whole_rows(width, monkeypatch):
    x, y = (np.random.default_rng(seed).normal(size=(3, 5 + seed, width)).astype(np.float32) for seed in (0, 1))
    monkeypatch.setattr(matrix_products, "PIECE", 6)
    found = jax.jit(inner_products)(x, y)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, x.astype(np.float64) @ y.astype(np.float64).swapaxes(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, 100, 255, 256, 257, 1000, 8192])
def test_inner_products_are_as_exact_as_is_stated(width):
    """Also those of equal numbers, whose rounding has one sign."""
    values = np.random.default_rng(0).uniform(0.5, 1, 64).astype(np.float32)
    x = np.tile(values[None, :, None], (1, 1, width))
    exact = np.outer(values.astype(np.float64), values) * width
    found = np.asarray(jax.jit(inner_products)(x, x), np.float64)[0]
    assert np.abs(found / exact - 1).max() <= inner_product_error(width)
