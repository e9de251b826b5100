"""The output layer fused with the loss, whole and block by block, held to float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.layers import blocked_head
from fedlm.models.layers.basic import soft_cap
from fedlm.models.layers.blocked_head import blocked_cross_entropy
from fedlm.models.layers.linear_head import linear_cross_entropy

WIDTH, VOCABULARY, SHAPE = 6, 11, (3, 4)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 tokens, which do not divide the vocabulary."""
    for name, value in {"MOST_LOGITS": 0, "BLOCK": 0, "_LEAST": 4}.items():
        monkeypatch.setattr(blocked_head, name, value)


def inputs(scale=1.0):
    """Arrays, targets, and the weights of losses; rows of the second example have none."""
    rng = np.random.default_rng(0)
    x, table, bias = (rng.normal(size=size) for size in ((*SHAPE, WIDTH), (VOCABULARY, WIDTH), VOCABULARY))
    targets, weights = rng.integers(0, VOCABULARY, SHAPE), rng.normal(size=SHAPE)
    targets[0], weights[1] = 7, 0  # several rows add to the same gradient
    return [scale * each for each in (x, table, bias)], targets, weights


def plain(x, table, bias, targets, cap=None):
    logits = jax.nn.log_softmax(soft_cap(x @ table.T + bias, cap))
    return -jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def in_blocks(x, table, bias, targets, cap=None):
    return blocked_cross_entropy(x, table, bias, jnp.asarray(targets), cap=cap)[0]


def values_and_gradients(loss, arrays, targets, weights):
    def total(*arrays):
        losses = loss(*arrays, targets)
        return jnp.sum(losses * weights), losses

    gradients, losses = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*arrays)
    return [losses, *gradients]


def expected(arrays, targets, weights, cap=None):
    loss = functools.partial(plain, cap=cap)
    with jax.enable_x64(True):
        found = values_and_gradients(loss, [np.asarray(one, np.float64) for one in arrays], targets, weights)
        return [np.asarray(one) for one in found]


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_values_and_gradients_are_those_of_float64(scale, cap, small_blocks):
    arrays, targets, weights = inputs(scale)
    wanted = expected(arrays, targets, weights, cap)
    for loss in (functools.partial(in_blocks, cap=cap), *([linear_cross_entropy] if cap is None else [])):
        found = values_and_gradients(loss, [jnp.float32(one) for one in arrays], targets, weights)
        assert not np.any(found[1][1]), "rows of no weight give no gradient"
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * max(scale, 1))


def test_of_equal_logits_the_first_is_the_prediction(small_blocks):
    x, table = jnp.ones((1, VOCABULARY, WIDTH)), jnp.ones((VOCABULARY, WIDTH))
    _, correct = blocked_cross_entropy(x, table, None, jnp.arange(VOCABULARY)[None], cap=None)
    np.testing.assert_array_equal(correct[0], np.arange(VOCABULARY) == 0)


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


@pytest.mark.long
def test_no_logits_of_all_tokens_are_in_memory():
    positions, vocabulary, width = 1024, 256_000, 64

    def loss(x, table, targets):
        return jnp.sum(blocked_cross_entropy(x, table, None, targets, cap=None)[0])

    shapes = [((1, positions, width), jnp.float32), ((vocabulary, width), jnp.float32), ((1, positions), jnp.int32)]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*(jax.ShapeDtypeStruct(*one) for one in shapes)).compile()
    assert blocked_head.needs_blocks(positions, vocabulary)
    assert compiled.memory_analysis().temp_size_in_bytes < positions * vocabulary * 4 / 2
