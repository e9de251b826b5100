import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.layers.attention import softmax_attention_weights
from fedlm.models.layers.basic import init_dense, init_embedding, init_layer_norm, layer_norm
from fedlm.models.layers.recurrences.recurrent import init_cifg_layer


def rows(shape=(3, 4, 16), seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


NORM = {"scale": rows((16,), 1), "shift": rows((16,), 2)}


def test_every_matrix_is_glorot_uniform_and_so_is_each_gate_of_a_cell():
    cell = init_cifg_layer(jax.random.key(0), 30, 50)
    kernels = [init_dense(jax.random.key(0), *shape)["kernel"] for shape in ((40, 60), (100, 10))]
    kernels += [cell["projection"]["kernel"]]
    for name in ("input", "recurrent"):
        kernels += np.split(np.asarray(cell[name]["kernel"]), 3, axis=-1)
    for kernel in kernels:
        limit = math.sqrt(6 / sum(kernel.shape))
        # 1,000 draws or more: each of the bounds fails with probability below 2e-5, and the key is fixed.
        assert 0.98 * limit < np.max(kernel) <= limit * (1 + 1e-6)
        assert -limit * (1 + 1e-6) <= np.min(kernel) < -0.98 * limit
        assert abs(np.mean(kernel)) < 5 * limit / math.sqrt(3 * kernel.size)


def test_embedding_rows_have_unit_expected_norm():
    table = np.asarray(init_embedding(jax.random.key(0), 4000, 64)["table"])
    # The mean of 4,000 squared norms of variance 2 / 64: five standard deviations.
    assert abs(np.mean(np.sum(table**2, axis=-1)) - 1) < 5 * math.sqrt(2 / 64 / 4000)


def test_layer_norms_of_large_numbers_and_of_constant_rows():
    y = layer_norm(init_layer_norm(16), 1000 + 5 * rows())
    np.testing.assert_allclose(np.mean(y, axis=-1), 0, atol=1e-3)
    np.testing.assert_allclose(np.var(y, axis=-1), 1, rtol=1e-3)
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(layer_norm(NORM, x)))(jnp.full(16, 3.0))
    np.testing.assert_allclose(value, NORM["shift"].sum(), rtol=1e-4)
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_only_rounds_results(dtype):
    mask = np.tril(np.ones((6, 6), bool))
    for layer, values in (
        (lambda x: layer_norm(NORM, x), 7 + rows()),
        (lambda x: softmax_attention_weights(x, mask), rows((2, 6, 6))),
    ):
        x = jnp.asarray(values, dtype)
        np.testing.assert_array_equal(layer(x), layer(x.astype(jnp.float32)).astype(dtype))
