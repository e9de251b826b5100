"""The output layer fused with the loss, held to float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.layers.linear_head import linear_cross_entropy

WIDTH, VOCABULARY, SHAPE = 6, 11, (3, 4)


def inputs(scale=1.0):
    """Arrays, targets, and the weights of losses; rows of the second example have none."""
    rng = np.random.default_rng(0)
    x, table, bias = (rng.normal(size=size) for size in ((*SHAPE, WIDTH), (VOCABULARY, WIDTH), VOCABULARY))
    targets, weights = rng.integers(0, VOCABULARY, SHAPE), rng.normal(size=SHAPE)
    targets[0], weights[1] = 7, 0  # several rows add to the same gradient
    return [scale * each for each in (x, table, bias)], targets, weights


def plain(x, table, bias, targets):
    logits = jax.nn.log_softmax(x @ table.T + bias)
    return -jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def values_and_gradients(loss, arrays, targets, weights):
    def total(*arrays):
        losses = loss(*arrays, targets)
        return jnp.sum(losses * weights), losses

    gradients, losses = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*arrays)
    return [losses, *gradients]


def expected(arrays, targets, weights):
    with jax.enable_x64(True):
        found = values_and_gradients(plain, [np.asarray(one, np.float64) for one in arrays], targets, weights)
        return [np.asarray(one) for one in found]


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_values_and_gradients_are_those_of_float64(scale):
    arrays, targets, weights = inputs(scale)
    found = values_and_gradients(linear_cross_entropy, [np.float32(one) for one in arrays], targets, weights)
    assert not np.any(found[1][1]), "rows of no weight give no gradient"
    for one, wanted in zip(found, expected(arrays, targets, weights), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5 * max(scale, 1))


@pytest.mark.long
def test_each_of_many_lanes_has_its_own_gradient():
    arrays, targets, weights = inputs()
    lanes = [np.float32(np.stack([each, 2 * each])) for each in arrays]
    both = jax.vmap(lambda *a: values_and_gradients(linear_cross_entropy, a, targets, weights))(*lanes)
    for lane in (0, 1):
        alone = expected([each[lane] for each in lanes], targets, weights)
        for found, wanted in zip(both, alone, strict=True):
            np.testing.assert_allclose(found[lane], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_only_rounds(dtype):
    arrays, targets, weights = inputs()
    low = [jnp.asarray(each, dtype) for each in arrays]
    found = values_and_gradients(linear_cross_entropy, low, targets, weights)
    assert [one.dtype for one in found] == [jnp.float32, dtype, dtype, dtype]
    for one, wanted in zip(found, expected(arrays, targets, weights), strict=True):
        np.testing.assert_allclose(one.astype(np.float32), wanted, rtol=0.05, atol=0.05 * np.abs(wanted).max())
