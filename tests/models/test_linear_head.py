"""The output layer fused with the loss, held to the two one after the other and to float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.linear_head import linear_cross_entropy
from fedlm.models.losses import cross_entropy

WIDTH, VOCABULARY, SHAPE = 6, 11, (3, 4)


def inputs(scale=1.0, dtype=np.float32):
    rng = np.random.default_rng(0)
    x, table, bias = (rng.normal(size=size) for size in ((*SHAPE, WIDTH), (VOCABULARY, WIDTH), VOCABULARY))
    targets = rng.integers(0, VOCABULARY, SHAPE)
    targets[0] = 7  # several rows add to the same gradient
    return [(scale * each).astype(dtype) for each in (x, table, bias)], targets, rng.normal(size=SHAPE).astype(dtype)


def one_after_the_other(x, table, bias, targets):
    return cross_entropy(x @ table.T + bias, targets)


def gradients(loss, arrays, targets, weights):
    return jax.grad(lambda *arrays: jnp.sum(loss(*arrays, targets) * weights), argnums=(0, 1, 2))(*arrays)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_values_and_gradients_are_those_of_the_two_one_after_the_other(scale):
    arrays, targets, weights = inputs(scale)
    expected = one_after_the_other(*arrays, targets)
    np.testing.assert_allclose(linear_cross_entropy(*arrays, targets), expected, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(
        gradients(linear_cross_entropy, arrays, targets, weights),
        gradients(one_after_the_other, arrays, targets, weights),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.long
def test_gradients_in_float64():
    with jax.enable_x64(True):
        arrays, targets, weights = inputs(dtype=np.float64)

        def plain(x, table, bias, targets):
            logits = jax.nn.log_softmax(x @ table.T + bias)
            return -jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]

        for found, wanted in zip(
            gradients(linear_cross_entropy, arrays, targets, weights),
            gradients(plain, arrays, targets, weights),
            strict=True,
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_rows_of_no_weight_give_no_gradient():
    arrays, targets, weights = inputs()
    weights[1] = 0
    of_x, _, _ = gradients(linear_cross_entropy, arrays, targets, weights)
    assert np.all(np.asarray(of_x[1]) == 0)
    assert np.all(np.any(np.asarray(of_x[0]) != 0, axis=-1))


@pytest.mark.long
def test_each_of_many_lanes_has_its_own_gradient():
    arrays, targets, weights = inputs()
    lanes = [np.stack([each, 2 * each]) for each in arrays]
    both = jax.vmap(lambda *a: gradients(linear_cross_entropy, a, targets, weights))(*lanes)
    for lane in (0, 1):
        alone = gradients(linear_cross_entropy, [each[lane] for each in lanes], targets, weights)
        for found, wanted in zip(both, alone, strict=True):
            np.testing.assert_allclose(found[lane], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_only_rounds(dtype):
    arrays, targets, weights = inputs()
    low = [jnp.asarray(each, dtype) for each in arrays]
    losses = linear_cross_entropy(*low, targets)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, one_after_the_other(*arrays, targets), rtol=0.05, atol=0.05)
    for found, wanted in zip(
        gradients(linear_cross_entropy, low, targets, weights),
        gradients(one_after_the_other, arrays, targets, weights),
        strict=True,
    ):
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=0.05, atol=0.05 * np.abs(wanted).max())
