import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.families.transformer import softmax_attention_weights
from fedlm.models.layers.basic import init_dense, init_embedding, init_layer_norm, layer_norm
from fedlm.models.layers.recurrent import init_cifg_layer


def rows(shape=(3, 4, 16), seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Initial values


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 60), (100, 10)])
def test_dense_kernels_are_glorot_uniform(inputs, outputs):
    kernel = np.asarray(init_dense(jax.random.key(0), inputs, outputs)["kernel"])
    limit = math.sqrt(6 / (inputs + outputs))
    assert kernel.shape == (inputs, outputs)
    # 1,000 draws or more: each of the bounds fails with probability below 2e-5, and the key is fixed.
    assert 0.98 * limit < kernel.max() <= limit
    assert -limit <= kernel.min() < -0.98 * limit
    assert abs(kernel.mean()) < 5 * limit / math.sqrt(3 * kernel.size)


def test_gates_of_the_cell_are_glorot_uniform_each():
    params = init_cifg_layer(jax.random.key(0), 30, 50)
    limit = math.sqrt(6 / (30 + 50))
    for name in ("input", "recurrent"):
        for gate in np.split(np.asarray(params[name]["kernel"]), 3, axis=-1):
            assert gate.shape == (30, 50)
            assert 0.98 * limit < np.abs(gate).max() <= limit * (1 + 1e-6)
    assert 0.98 * limit < np.abs(params["projection"]["kernel"]).max() <= limit


def test_embedding_rows_have_unit_expected_norm():
    table = np.asarray(init_embedding(jax.random.key(0), 4000, 64)["table"])
    # The mean of 4,000 squared norms of variance 2 / 64: five standard deviations.
    assert abs(np.mean(np.sum(table**2, axis=-1)) - 1) < 5 * math.sqrt(2 / 64 / 4000)


def test_biases_and_layer_norms_start_neutral():
    assert not np.any(init_dense(jax.random.key(0), 3, 4, bias=True)["bias"])
    assert "bias" not in init_dense(jax.random.key(0), 3, 4)
    np.testing.assert_array_equal(init_layer_norm(5)["scale"], np.ones(5))
    np.testing.assert_array_equal(init_layer_norm(5)["shift"], np.zeros(5))


# Values


def test_layer_norm_has_mean_zero_and_variance_one_which_its_parameters_scale_and_shift():
    params = {"scale": rows((16,), 1), "shift": rows((16,), 2)}
    y = layer_norm(init_layer_norm(16), 1000 + 5 * rows())
    np.testing.assert_allclose(np.mean(y, axis=-1), 0, atol=1e-3)
    np.testing.assert_allclose(np.var(y, axis=-1), 1, rtol=1e-3)
    moved = layer_norm(params, 1000 + 5 * rows())
    np.testing.assert_allclose(moved, y * params["scale"] + params["shift"], rtol=1e-4, atol=1e-5)


def test_layer_norm_of_a_constant_row_is_its_shift_with_a_finite_gradient():
    params = {"scale": rows((16,), 1), "shift": rows((16,), 2)}
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(layer_norm(params, x)))(jnp.full(16, 3.0))
    np.testing.assert_allclose(value, params["shift"].sum(), rtol=1e-4)
    assert np.all(np.isfinite(gradient))


def test_softmax_attention_ignores_hidden_keys_exactly():
    mask = np.tril(np.ones((6, 6), bool))
    scores = rows((2, 6, 6))
    weights = np.asarray(softmax_attention_weights(scores, mask))
    assert np.all(weights[:, ~mask] == 0)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(softmax_attention_weights(np.where(mask, scores, 1e30), mask), weights)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_only_rounds_results(dtype):
    params, mask = {"scale": rows((16,), 1), "shift": rows((16,), 2)}, np.tril(np.ones((6, 6), bool))
    for layer, values in (
        (lambda x: layer_norm(params, x), 7 + rows()),
        (lambda x: softmax_attention_weights(x, mask), rows((2, 6, 6))),
    ):
        x = jnp.asarray(values, dtype)
        np.testing.assert_array_equal(layer(x), layer(x.astype(jnp.float32)).astype(dtype))
